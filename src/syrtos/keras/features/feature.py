"""The interface of an option of training: the moments of training at which it acts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from syrtos.checkpoint.encoding import Arrays
from syrtos.comm.communicator import Array
from syrtos.comm.world import Session
from syrtos.keras.patching import Patch

if TYPE_CHECKING:
    from syrtos.keras.protocols import Logs, Model
    from syrtos.keras.updates import Update

KeptT = TypeVar("KeptT")

# A record of a planned data set: its index, the file in which it lies, and where in it.
Record = tuple[int, str, int]


@dataclasses.dataclass
class Fit:
    """A call of `fit`, or a script's own loop that calls Keras's callbacks, as features see it.

    Attributes:
        model: the model that is trained; None, or anything, in a loop of the script's own.
        is_of_keras: whether it is Keras's `fit`, or another of its methods that train.
        is_outermost: whether it is not called within another one.
        steps: the number of steps that it has made.
        epoch: the number of the epoch, from 0.
        epoch_began_at: ``steps`` when the epoch began.
        epoch_steps: the number of steps of an epoch; None while no batch has begun, or where Keras
            does not know it.
        batch: the number of the batch in the epoch, from 0; of several that one call computes, the
            first, and the last once they are computed.
        call_steps: the number of steps that a call of the training function makes.
        records: returns the records of this worker's shares of the batches of the call, where they
            are known, once they have been drawn.
        kept: what features keep for this training, by its class: see `keep`.
    """

    model: Any = None
    is_of_keras: bool = False
    is_outermost: bool = True
    steps: int = 0
    epoch: int = 0
    epoch_began_at: int = 0
    epoch_steps: int | None = None
    batch: int = 0
    call_steps: int = 1
    records: Callable[[], Sequence[Record]] = list
    kept: dict[type, Any] = dataclasses.field(default_factory=dict)

    def keep(self, one: KeptT) -> KeptT:
        """Keeps an object of a feature until this training ends; `find` returns it."""
        self.kept[type(one)] = one
        return one

    def find(self, kind: type[KeptT]) -> KeptT | None:
        """Returns the object of a class that was kept; None without one."""
        return self.kept.get(kind)


class Feature:
    """An option of training, as one object for the life of a worker.

    Methods that it does not define do nothing. On JAX, where one program of XLA computes steps and
    updates, with Keras 2 and with parameter servers not all methods about a step and its update are
    called: features of other packages that define one are refused there.

    Attributes:
        name: the name of its file or entry point.
        nesting: of two features the one with the larger number wraps a step or an update around the
            other; of equal ones that whose name is last.
        session: the session of this process.
    """

    name: ClassVar[str]
    nesting: ClassVar[int] = 0

    def __init__(self, session: Session) -> None:
        self.session = session

    @classmethod
    def is_asked(cls, session: Session) -> bool:
        """Returns whether it acts in this run; called once in a worker, when Keras is adapted."""
        return True

    def patches(self) -> Sequence[Patch]:
        """Returns the patches of Keras 3 that it needs on every framework."""
        return ()

    # -- fit -------------------------------------------------------------------------------------

    def around_fit(self) -> contextlib.AbstractContextManager[None]:
        """Context manager around each call of `fit`, or of another method that trains."""
        return contextlib.nullcontext()

    def before_callbacks(self, fit: Fit) -> None:
        """Acts when training begins, before the script's callbacks, which may restore a model."""

    def training_begins(self, fit: Fit) -> None:
        """Acts when training begins, after the script's callbacks.

        All workers hold the same model then.
        """

    def epoch_begins(self, fit: Fit) -> None:
        """Acts when an epoch begins, after the script's callbacks."""

    def batch_begins(self, fit: Fit) -> None:
        """Acts right before a call of the training function."""

    def batch_computed(self, fit: Fit, steps: int) -> None:
        """Acts right after a call of the training function, which has made so many ``steps``."""

    def batch_ends(self, fit: Fit, logs: Logs) -> None:
        """Acts when the script's callbacks have seen the logs of a batch."""

    def epoch_computed(self, fit: Fit, logs: dict[str, object] | None) -> None:
        """Acts after an epoch's last batch, before the script's callbacks; may change the logs."""

    def epoch_ends(self, fit: Fit) -> None:
        """Acts when the script's callbacks have seen the logs of an epoch."""

    def epoch_facts(self, fit: Fit) -> dict[str, object]:
        """Returns facts about an epoch for the run's record, by name; plain data, as for JSON."""
        return {}

    def training_ends(self, fit: Fit) -> None:
        """Acts when training ends, after the script's callbacks."""

    def evaluation_begins(self, model: Model) -> None:
        """Acts when an evaluation of a model begins, within `fit` or outside of it."""

    def evaluation_ends(self, model: Model) -> None:
        """Acts when an evaluation ends."""

    def train_on_batch_begins(self) -> None:
        """Acts when the script calls `train_on_batch`.

        Raises:
            ConfigurationError: the feature can't work so.
        """

    def asks_to_stop(self, fit: Fit, asks: bool) -> bool:
        """Returns whether this worker asks all to stop.

        ``asks``: the wish of its script, as the features before this one have left it.
        """
        return asks

    # -- where workers do not train in step: for features of this folder, others are refused ------

    def trains_apart(self) -> bool:
        """Returns whether each worker makes its next steps alone, without exchanging gradients."""
        return False

    def is_between_meetings(self, fit: Fit) -> bool:
        """Returns whether workers that train apart have not synchronized since their last step."""
        return False

    def replicas_differ(self, fit: Fit) -> bool:
        """Returns whether the workers hold different weights now, as they are meant to."""
        return self.is_between_meetings(fit)

    def meet(self) -> None:
        """Gives workers that train apart the same weights, in the middle of a round."""

    def count_samples(self, samples: float) -> None:
        """Counts the samples of a training step of this worker."""

    # -- a step and its update -------------------------------------------------------------------

    def around_step(
        self, model: Model, session: Session, step: Callable[[], object]
    ) -> Callable[[], object]:
        """Returns a training step, wrapped; called when the step is traced, or each time it runs.

        Args:
            model: the model that is trained.
            session: the workers that make the step together.
            step: computes the step on this worker's share, and returns its logs.
        """
        return step

    def around_update(
        self, update: Update, apply: Callable[[Sequence[Any]], None]
    ) -> Callable[[Sequence[Any]], None]:
        """Returns the function that takes an update's gradients of this worker, wrapped.

        ``apply`` accumulates them, or reduces them and assigns the weights. Gradients that are
        accumulated have been multiplied by this worker's part of the samples.
        """
        return apply

    def check_gradients(
        self, update: Update, grads: Sequence[Any], own: Sequence[Any]
    ) -> Sequence[Any]:
        """Returns the gradients of an update, once it has looked at them. It must not change them.

        Args:
            update: the update.
            grads: the reduced gradients: of the global batch, or this worker's where it trains
                apart.
            own: the gradients before they were reduced.
        """
        return grads

    def change_gradients(self, update: Update, grads: Sequence[Any]) -> Sequence[Any]:
        """Returns the reduced gradients of an update, changed before they are clipped and applied.

        Embeddings may have `tf.IndexedSlices` among them. It is called once for each update that is
        made; with it gradients are reduced whole, into memory of this worker's own.
        """
        return grads

    # -- snapshots -------------------------------------------------------------------------------

    def arrays(self, fit: Fit) -> Arrays:
        """Returns values for a snapshot, from which training goes on, by names of the feature."""
        return {}

    def put_back(self, arrays: Mapping[str, Array], fit: Fit) -> None:
        """Restores what `arrays` gave, if anything, once the model is put back.

        The arrays may come as bytes, without their dtypes and shapes: see
        `syrtos.checkpoint.encoding.as_dtype`.
        """
