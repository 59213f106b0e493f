"""The training, test and predict functions of a Keras model on TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from syrtos.comm.world import Session
from syrtos.keras.features import registry
from syrtos.keras.patching import Method
from syrtos.keras.replica import accumulation
from syrtos.keras.split import known_parts, verdicts
from syrtos.keras.tensorflow import tf_internals
from syrtos.keras.tensorflow.assignments import as_one_process
from syrtos.keras.tensorflow.input import Numbered, TensorShare, cut, numbered_by_hand
from syrtos.keras.tensorflow.input_policy import gives_whole_batches
from syrtos.keras.tensorflow.partition.step import PartitionedStep
from syrtos.keras.tensorflow.partition.verifying import verify_step
from syrtos.keras.tensorflow.step import TensorFlowStep, count_samples

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model
    from syrtos.keras.tensorflow.types import BatchStep

# A batch as Keras's data sets give it to a step.
Batch = TensorShare | Numbered


class TensorFlowFunction:
    """A function of a model on TensorFlow, whose steps all workers compute together.

    Steps are partitioned (see `syrtos.keras.tensorflow.partition`), except where an option lets each
    worker train on its own share. A `Numbered` batch is whole, a `TensorShare` is this worker's part
    of one. `call` turns other batches into one of the two, except where batches are not split, or
    are given whole (see `giving_whole_batches`).

    Attributes:
        model: the model whose function it is.
        step: `train_step`, `test_step` or `predict_step`, as the model has it.
        function: makes steps.
        reduces_early: whether gradients of shares are reduced where they are made, because code of
            the script's sees them.
        verifying: counts the calls of the function.
        takes_batch_first: whether the function takes a batch from an iterator before it traces a
            step.
    """

    def __init__(
        self,
        model: Model,
        session: Session,
        step: BatchStep,
        stock: bool,
        name: str,
        compiles: bool = False,
    ) -> None:
        """
        Args:
            model: the model whose function it is.
            session: the workers.
            step: see above.
            stock: whether the step is Keras's own.
            name: the name of the step.
            compiles: whether XLA compiles a step that workers compute together.
        """
        self.model, self.step, self._session, self._name = model, step, session, name
        self._stock = stock
        self.reduces_early = known_parts.script_sees_gradients(model, stock, name)
        self._accumulation = accumulation.Kind(session.comm, model)
        self.verifying = verdicts.Verifying(model, session)
        trains = name == "train_step"
        # Servers that update in step with the workers take the gradients of shares.
        self._serves_shares = trains and bool(session.options.servers)
        self._partitioned = (
            PartitionedStep(self._step_of_run, session, trains, self._tell_whole, compiles=compiles)
            if partitions(session, name)
            else None
        )
        self.function: Method = step
        self.takes_batch_first = False
        self._has_told = False
        self._is_to_verify = session.options.verifies

    def call(self, batches: Iterable[object], steps: int) -> object:
        """Calls the function.

        Args:
            batches: an iterator of `tf.data`, Keras's or the script's own, or a list of batches.
            steps: the number of steps that one call makes.

        Raises:
            StopIteration: there is no batch.
        """
        # E.g. the validation inside of a `fit` whose `make_train_function` is the script's own.
        if gives_whole_batches():
            return self.function(batches)
        self.verifying.count_call()
        spec = getattr(batches, "element_spec", None)
        if spec is None:
            batches = [self._prepare(batch) for batch in batches]
        elif verdicts.is_split(self._session) and not isinstance(spec, Batch):
            batches, spec = self._iterator_of_script(batches, steps)
        if self._name == "train_step":
            self._accumulation.note(self._computes_together or self.reduces_early)
        if self._computes_together and self._is_to_verify:
            batches = self._verified(batches, spec, steps)
        if self._partitioned is None:
            return self.function(batches)
        if self.takes_batch_first and steps == 1 and spec is not None:
            batches = _next_batches(iter(batches), steps)
            if not batches:
                raise StopIteration
        failure = self._partitioned.failure
        with self._partitioned.naming_lines():
            try:
                return self.function(batches)
            except Exception:
                if self._partitioned.failure == failure:
                    raise
            # No step was made, and no batch taken: the error came while the function was traced.
            # Each worker traces the same program, and meets it too.
            return self.function(batches)

    def compute_step(self, batch: object) -> object:
        """Computes one step of the function."""
        if not isinstance(batch, Batch) and verdicts.is_split(self._session):
            with as_one_process():
                return self._step_of_run(batch)
        if self._partitioned is not None and isinstance(batch, Batch) and not self._is_on_shares():
            return self._partitioned(batch)
        training = self._name == "train_step"
        session = registry.session_of_step(self._session, training)
        share = cut(batch, self._session.input_comm)
        draws_by_rank = bool(getattr(self.model, "built", True))
        with TensorFlowStep(
            session, share, training, self.reduces_early, draws_by_rank
        ).as_current_step() as scope:
            if self._name == "predict_step":
                return scope.own_rows(self.step(scope.data))

            def compute() -> object:
                return scope.finish(self.step(scope.data), logs_are_global=self._stock)

            return registry.around_step(self.model, session, compute)() if training else compute()

    @property
    def _computes_together(self) -> bool:
        return self._partitioned is not None and not self._serves_shares

    def _is_on_shares(self) -> bool:
        """Returns whether a step that could be partitioned is computed on shares, for servers.

        Where it has parts that may be wrong on a share, every worker computes whole batches.
        """
        if self._partitioned is None or not self._serves_shares:
            return False
        stateful = known_parts.fixed_batch(self.model)
        unknown = [stateful] if stateful else []
        unknown += known_parts.unknown_parts(self.model, self._stock, self._name)
        if unknown:
            self._partitioned.reason_whole = (
                f"parameter servers take gradients of shares, which may be wrong with {unknown[0]}"
            )
        return not unknown

    def _step_of_run(self, batch: object) -> object:
        """Computes a step on a whole batch, as one process would with the options of the run."""
        if self._name != "train_step":
            return self.step(batch)
        return registry.around_step(self.model, self._session, lambda: self.step(batch))()

    def _verified(self, batches: Any, spec: object, steps: int) -> Any:
        """Returns the batches of a call, the first of which `syrtos verify` has compared."""
        self._is_to_verify = False
        found = _next_batches(iter(batches), steps)
        # Where the data has ended the function is called all the same, and raises: an optimizer has
        # counted one update more then, as in one process.
        if not found:
            return batches
        verify_step(self.model, self._session, self._step_of_run, self._name, found[0])
        return found if spec is None else _iterator_over(found, spec)

    def _iterator_of_script(
        self, batches: Any, steps: int
    ) -> tuple[Iterator[Batch], tf.TypeSpec | None]:
        """Returns the next batches of an iterator of the script's own, prepared, and their spec.

        Raises:
            StopIteration: it has no batch left. It is raised before the function runs, so an
                optimizer's counter stays as it is; in one process it would go on.
        """
        are_shares, found = tf_internals.iterates_over_shares(batches), []
        for batch in itertools.islice(batches, steps):
            found.append(_share_by_hand(batch) if are_shares else self._prepare(batch))
        if not found:
            raise StopIteration
        prepared = _iterator_over(found)
        return prepared, prepared.element_spec

    def _prepare(self, batch: object) -> object:
        """Numbers a batch that no data set of ours has given, so that steps can cut it."""
        is_prepared = isinstance(batch, Batch) or not verdicts.is_split(self._session)
        return batch if is_prepared else numbered_by_hand(batch)

    def _tell_whole(self, why: str) -> None:
        """Says once why every worker computes whole batches."""
        if not self._has_told:
            self._has_told = True
            verdicts.tell(why, self._session, f"`{self._name}` of {self.model.name}")


def partitions(session: Session, name: str) -> bool:
    """Returns whether workers compute steps together.

    They do, unless each trains on batches of its own.

    ``name``: of the step.
    """
    options = session.options
    train_apart = name == "train_step" and bool(options.sync_every or options.asynchronous)
    return verdicts.is_split(session) and not train_apart


_FUNCTIONS = "_syrtos_functions"


def functions_of(model: Model) -> dict[str, TensorFlowFunction]:
    """Returns the functions of a model whose steps are replaced, by the names of these."""
    # On the model itself: a record that refers to its object would keep it alive for ever.
    found: dict[str, TensorFlowFunction] | None = model.__dict__.get(_FUNCTIONS)
    if found is None:
        found = {}
        # Keras tracks, and saves, what is set in the usual way.
        object.__setattr__(model, _FUNCTIONS, found)
    return found


def _next_batches(iterator: Iterator[Any], steps: int) -> list[Any]:
    """Returns the batches of a call, fewer where the data ends; none if it has ended."""
    found: list[Any] = []
    with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
        while len(found) < steps:
            found.append(next(iterator))
    return found


def _share_by_hand(rows: object) -> TensorShare:
    """Returns rows without a number as a share; they are counted."""
    count, _ = count_samples(rows)
    return TensorShare(tf.cast(count, tf.int64), rows)


def _iterator_over(batches: Sequence[Any], spec: object = None) -> Any:
    """Returns an iterator over batches.

    With a ``spec`` its elements have that spec, so that a function is not traced again.
    """
    parts = [tf.data.Dataset.from_tensors(batch) for batch in batches]
    joined = functools.reduce(lambda one, other: one.concatenate(other), parts)
    # A data set has static shapes of its own: the way through a variant tensor replaces them.
    if spec is None:
        return iter(joined)
    return iter(tf.data.experimental.from_variant(tf.data.experimental.to_variant(joined), spec))
