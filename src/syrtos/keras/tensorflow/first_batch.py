"""The functions of a model on TensorFlow that Keras calls for each batch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from syrtos.comm.world import Session
from syrtos.errors import SyrtosError
from syrtos.keras import keras_internals
from syrtos.keras.patching import Method
from syrtos.keras.replica import state
from syrtos.keras.split import (
    known_parts,
    trial_step,
    verdicts,
    whole_batch,
)
from syrtos.keras.split.split_function import SplitFunction
from syrtos.keras.split.trial_step import Amount
from syrtos.keras.tensorflow.input import Numbered, TensorShare, cut
from syrtos.keras.tensorflow.models import synchronize_batchnorm
from syrtos.keras.tensorflow.rows import count_rows, has_rows
from syrtos.keras.tensorflow.trial import PredictingTensorFlowTrial, TensorFlowTrial, precision_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model
    from syrtos.keras.tensorflow.types import BatchStep

# A batch as Keras's data sets give it to a step.
Batch = TensorShare | Numbered


class TensorFlowFunction(SplitFunction[Batch]):
    """A function of a model on TensorFlow, which is traced by its plan.

    Attributes:
        function: makes steps by the plan as it is now.
    """

    def __init__(
        self, model: Model, session: Session, step: BatchStep, stock: bool, name: str
    ) -> None:
        """
        Args:
            model: the model whose function it is.
            session: the workers.
            step: `train_step`, `test_step` or `predict_step`.
            stock: whether the step is Keras's own.
            name: the name of the step.
        """
        early = whole_batch.script_sees_gradients(model, stock, name)
        super().__init__(model, session, name, stock, early)
        self._step = step
        self._make: Callable[[], Method] | None = None
        self.function: Method = step
        self._was_called = False

    def bind(self, make: Callable[[], Method]) -> None:
        """Keeps ``make``, which builds the function for the plan as it is, and calls it."""
        self._make = make
        self.function = make()

    def call(self, iterator: Iterator[Any], spec: object, steps: int) -> object:
        """Calls the function; before due steps, one of their batches is computed both ways.

        Args:
            iterator: has the batches.
            spec: of its elements; None where it is no iterator of `tf.data`, and the function takes
                a list of batches.
            steps: that one call of the function makes.

        Raises:
            StopIteration: there is no batch.
        """
        batches: Iterable[Batch] = iterator
        if self.is_due(steps):
            found = [next(iterator)]
            # The last call of an epoch may have fewer batches than the others.
            with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
                while len(found) < steps:
                    found.append(next(iterator))
            self.decide(found[-1 if self.checks.ends_epoch else 0])
            batches = found if spec is None else _iterator_over(found, spec)
        elif spec is None:
            batches = list(iterator)
        self.checks.count(steps)
        self.note_accumulation()
        try:
            outputs = self.function(batches)
        except Exception as error:
            why = self.plan.unproven or self._refusal_of_tracing(error)
            if not why:
                raise
            # The same batches are given again: while the function is traced no step is made, and no
            # batch taken.
            outputs = self._call_without_split(batches, why, error)
        self._was_called = True
        return outputs

    def _call_without_split(self, batches: Iterable[Batch], why: str, error: Exception) -> object:
        """Calls the function, made anew for whole batches on each worker.

        ``error`` is what tracing the function for a share has raised.
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
        # Errors of operations, and of any call after the first that came to its end, are of steps
        # that may have changed something.
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
        return kind(self.model, self._session, self._step, share, amount)

    def _has_unequal_rows(self, batch: Batch) -> bool:
        leaves = tf.nest.flatten(batch.data)
        counts = {int(count_rows(leaf)) for leaf in leaves if has_rows(leaf)}
        mine = float(len(counts) > 1)
        return any(self._session.comm.agree("tensors of the batch have unequal rows?", mine))

    def _known_variables(self) -> set[int]:
        return _known_variables(self.model)

    def _precision(self) -> int:
        return precision_of(self.model)

    def _needs_build(self) -> bool:
        # A model that its first step builds.
        return not getattr(self.model, "built", True)

    def _begin_whole_batches(self) -> None:
        super()._begin_whole_batches()
        if self._name == "train_step" and self._session.options.sync_batchnorm:
            # Every worker has all rows: the way in which one process computes their statistics
            # rounds less.
            synchronize_batchnorm(self.model, False)

    def _make_anew(self) -> None:
        if self._make is not None:
            self.function = self._make()


def _known_variables(model: Model) -> set[int]:
    """Returns the ids of the variables whose values are combined by a known rule.

    They are those of metrics, of Keras's own layers, and those that have an aggregation.
    """
    layers = [
        layer for layer in keras_internals.layers_of(model) if known_parts.is_known_layer(layer)
    ]
    found = [variable for part in [*layers, *model.metrics] for variable in part.variables]
    found += [variable for variable in state.of_model(model) if _says_aggregation(variable)]
    found += known_parts.copies_of_weights(model)
    return {id(getattr(variable, "value", variable)) for variable in found}


def _says_aggregation(variable: object) -> bool:
    found = getattr(getattr(variable, "value", variable), "aggregation", None)
    return found not in (None, tf.VariableAggregation.NONE)


def _iterator_over(batches: Sequence[Batch], spec: object) -> Iterator[Batch]:
    """Returns an iterator over batches, with elements of the given spec.

    Thus a function is not traced for these batches alone.
    """
    parts = [tf.data.Dataset.from_tensors(batch) for batch in batches]
    joined = functools.reduce(lambda one, other: one.concatenate(other), parts)
    # A data set has static shapes of its own; by a variant it is given those of the spec, and no
    # function is traced.
    return iter(tf.data.experimental.from_variant(tf.data.experimental.to_variant(joined), spec))
