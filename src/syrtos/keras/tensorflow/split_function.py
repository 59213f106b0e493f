"""The training, test and predict functions of a Keras model on TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from syrtos.comm.world import Session
from syrtos.errors import SyrtosError
from syrtos.keras.features import registry
from syrtos.keras.patching import Method
from syrtos.keras.replica import state
from syrtos.keras.split import known_parts, trial_step, verdicts
from syrtos.keras.split.split_function import SplitFunction
from syrtos.keras.split.trial_step import Amount
from syrtos.keras.tensorflow import tf_internals
from syrtos.keras.tensorflow.assignments import as_one_process
from syrtos.keras.tensorflow.input import Numbered, TensorShare, cut, numbered_by_hand
from syrtos.keras.tensorflow.input_policy import gives_whole_batches
from syrtos.keras.tensorflow.models import synchronize_batchnorm
from syrtos.keras.tensorflow.partition.step import PartitionedStep
from syrtos.keras.tensorflow.partition.verifying import verify_step
from syrtos.keras.tensorflow.rows import count_rows, has_rows
from syrtos.keras.tensorflow.step import TensorFlowStep, count_samples
from syrtos.keras.tensorflow.trial import PredictingTensorFlowTrial, TensorFlowTrial

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Variable
    from syrtos.keras.tensorflow.types import BatchStep

# A batch as Keras's data sets give it to a step.
Batch = TensorShare | Numbered


class TensorFlowFunction(SplitFunction[Batch]):
    """A function of a model on TensorFlow, whose steps are traced as its `SplitPlan` says.

    A `Numbered` batch is cut into shares, a `TensorShare` is this worker's already. `call` turns
    other batches into one of the two, except where batches are not split, or are given whole (see
    `giving_whole_batches`).

    Attributes:
        step: `train_step`, `test_step` or `predict_step`, as the model has it.
        function: makes steps by the plan as it is now.
    """

    def __init__(
        self, model: Model, session: Session, step: BatchStep, stock: bool, name: str
    ) -> None:
        """
        Args:
            model: the model whose function it is.
            session: the workers.
            step: see above.
            stock: whether the step is Keras's own.
            name: the name of the step.
        """
        early = known_parts.script_sees_gradients(model, stock, name)
        super().__init__(model, session, name, stock, early)
        self.step = step
        self._partitioned = (
            PartitionedStep(self._step_of_run, session, name == "train_step", self._tell_whole)
            if partitions(session)
            else None
        )
        self._make: Callable[[], Method] | None = None
        self.function: Method = step
        self._was_called = False
        self._is_to_verify = session.options.verify == "only"

    def bind(self, make: Callable[[], Method]) -> None:
        """Keeps ``make``, which builds the function by the current plan, and builds the first one."""

        def make_naming() -> Method:
            if self._partitioned is not None:
                return make()
            return verdicts.naming_split(self.plan, self._session, make())

        self._make = make_naming
        self.function = make_naming()

    def call(self, batches: Iterable[object], steps: int) -> object:
        """Calls the function. If a check is due, one batch is computed whole and split before.

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
        if self._partitioned is None and self.is_due(steps):
            found = _next_batches(iter(batches), steps)
            # If the data has ended, the function is called all the same, and raises: an optimizer
            # has counted one update more then, as in one process.
            if found:
                self.decide(found[-1 if self.checks.ends_epoch else 0])
                batches = found if spec is None else _iterator_over(found, spec)
            elif not self.plan.is_decided:
                raise StopIteration
        self.note_accumulation()
        if self._partitioned is not None:
            return self.function(self._verified(batches, spec, steps))
        try:
            outputs = self.function(batches)
        except Exception as error:
            why = self.plan.unproven or self._refusal_of_tracing(error)
            if not why:
                raise
            # The batches can be given again: the error came while the function was traced, before a
            # step was made or a batch taken.
            outputs = self._call_without_split(batches, why, error)
        self.checks.count(steps)
        self._was_called = True
        return outputs

    def _verified(self, batches: Any, spec: object, steps: int) -> Any:
        """Returns the batches of a call, of which `syrtos verify` has compared the first."""
        if not self._is_to_verify:
            return batches
        self._is_to_verify = False
        found = _next_batches(iter(batches), steps)
        if found:
            verify_step(self.model, self._session, self._step_of_run, self._name, found[0])
        # Where the data has ended the function is called all the same: see `call`.
        if not found:
            return batches
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

    def compute_step(self, batch: object) -> object:
        """Computes one step of the function, on this worker's share of the batch."""
        if not isinstance(batch, Batch) and verdicts.is_split(self._session):
            with as_one_process():
                return self._step_of_run(batch)
        if self._partitioned is not None and isinstance(batch, Batch):
            return self._partitioned(batch)
        training = self._name == "train_step"
        session = registry.session_of_step(self._session, training)
        share = cut(batch, self._session.input_comm)
        draws_by_rank = bool(getattr(self.model, "built", True))
        with TensorFlowStep(
            session, share, training, self.reduces_early, self.plan, draws_by_rank=draws_by_rank
        ).as_current_step() as scope:
            if self._name == "predict_step":
                return scope.gather(scope.run(self.step, batch))

            def compute() -> object:
                return scope.finish(scope.run(self.step, batch), logs_are_global=self._stock)

            return registry.around_step(self.model, session, compute)() if training else compute()

    def _step_of_run(self, batch: object) -> object:
        """Computes a step on a whole batch, as one process would with the options of the run."""
        if self._name != "train_step":
            return self.step(batch)
        return registry.around_step(self.model, self._session, lambda: self.step(batch))()

    def _call_without_split(self, batches: Iterable[object], why: str, error: Exception) -> object:
        """Makes the function anew, for whole batches on each worker, and calls it.

        ``error``: raised by the call for a share.
        """
        self.plan.reason_not_split, self.plan.unproven = why, ""
        self.checks.end()
        # Where one worker fails alone, the others learn of it here.
        self._session.comm.agree("a step is not split")
        self._begin_whole_batches()
        self.note_accumulation()
        self._make_anew()
        try:
            outputs = self.function(batches)
        except Exception:
            verdicts.forget_split(error)
            raise error from None  # it is the script's
        self._tell()
        return outputs

    def _refusal_of_tracing(self, error: Exception) -> str:
        """Returns why the step can't be traced for a share; empty where no trace has failed.

        For example, the step takes a number of rows from a static shape.
        """
        # Others may have changed state, so that the call can't be repeated: errors of operations, and
        # any error after a call has succeeded.
        runs = getattr(self.model, "run_eagerly", False) or tf.config.functions_run_eagerly()
        if (
            runs
            or self._was_called
            or self.plan.reason_not_split
            or not verdicts.is_split(self._session)
        ):
            return ""
        if isinstance(error, StopIteration | SyrtosError | tf.errors.OpError):
            return ""
        return f"it can't be traced for a part of the batch: {trial_step.describe_error(error)}"

    # -- what TensorFlow knows --------------------------------------------------------------------

    def _trial(self, batch: Batch, amount: Amount = Amount.FEW) -> TensorFlowTrial:
        kind: type[TensorFlowTrial] = (
            PredictingTensorFlowTrial if self._name == "predict_step" else TensorFlowTrial
        )
        share = cut(batch, self._session.input_comm)
        return kind(self.model, self._session, self.step, share, amount)

    def _has_unequal_rows(self, batch: Batch) -> bool:
        leaves = tf.nest.flatten(batch.data)
        counts = {int(count_rows(leaf)) for leaf in leaves if has_rows(leaf)}
        mine = float(len(counts) > 1)
        return any(self._session.comm.agree("tensors of the batch have unequal rows?", mine))

    def _identity(self, variable: Variable) -> int:
        return state.identity(variable)

    def _precision(self) -> int:
        return trial_step.precision_of(self.model)

    def _tell_whole(self, why: str) -> None:
        """Says once why every worker computes whole batches."""
        if not self.plan.reason_not_split:
            self.plan.reason_not_split = why
            self._tell()

    def _accumulates_whole_batches(self) -> bool:
        return self._partitioned is not None or super()._accumulates_whole_batches()

    def _needs_build(self) -> bool:
        # Such a model is built by its first step.
        return not getattr(self.model, "built", True)

    def _begin_whole_batches(self) -> None:
        super()._begin_whole_batches()
        if self._name == "train_step" and self._session.options.sync_batchnorm:
            # Every worker has all rows now. Without synchronization their statistics are rounded as
            # in one process.
            synchronize_batchnorm(self.model, False)

    def _make_anew(self) -> None:
        if self._make is not None:
            self.function = self._make()


def partitions(session: Session) -> bool:
    """Returns whether steps are partitioned: they are, unless an option gives workers other steps."""
    asked = session.options
    others = asked.sync_every or asked.servers or asked.shard_update
    return verdicts.is_split(session) and not others


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
