"""The functions of a model that make steps, which are split as trials on its first batch and later ones show."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from syrtos.comm.world import Session
from syrtos.errors import SyrtosError
from syrtos.keras import keras_internals
from syrtos.keras.features import registry
from syrtos.keras.patching import Method
from syrtos.keras.replica import accumulation, state
from syrtos.keras.split import (
    comparison,
    first_batch,
    known_parts,
    trial_step,
    verdicts,
    whole_batch,
)
from syrtos.keras.split.between_steps import NumbersBetweenSteps
from syrtos.keras.split.checks import Checks
from syrtos.keras.split.plan import SplitPlan
from syrtos.keras.split.trial_step import Amount
from syrtos.keras.tensorflow.input import Numbered, Share, cut
from syrtos.keras.tensorflow.models import synchronize_batchnorm
from syrtos.keras.tensorflow.rows import count_rows, has_rows
from syrtos.keras.tensorflow.trial import PredictingTrial, Trial, precision_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model
    from syrtos.keras.tensorflow.types import BatchStep

# A batch as Keras's data sets give it to a step.
Batch = Share | Numbered


class Function:
    """A function of a model that makes steps, and the plan by which they are split.

    Attributes:
        plan: the way steps are split, as the first batch has shown.
        reduces_early: whether code of the script's sees gradients before an optimizer of Keras's
            own takes them.
        verifying: counts the calls of the function.
        checks: says which batches are looked at.
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
        self._model, self._session, self._step, self._stock = model, session, step, stock
        self._name = name
        self.reduces_early = whole_batch.script_sees_gradients(model, stock, name)
        self._accumulation = accumulation.Kind(session.comm, model)
        alone = registry.trains_apart() or (name == "train_step" and session.options.sync_every > 0)
        self.plan = SplitPlan(is_decided=not verdicts.is_split(session) or alone)
        self.plan.reason_not_split = "" if self.plan.is_decided else known_parts.fixed_batch(model)
        self.verifying = verdicts.Verifying(model, session)
        self.checks = Checks(trains=name == "train_step")
        self._numbers = NumbersBetweenSteps(model, session)
        self._make: Callable[[], Method] | None = None
        self.function: Method = step
        self._is_compared = self._was_called = False
        if self.plan.is_decided:
            self.checks.end()

    def bind(self, make: Callable[[], Method]) -> None:
        """Takes what makes the function of steps anew, which is traced by the plan, and makes it."""
        self._make = make
        self.function = make()

    def call(self, iterator: Iterator[Any], spec: object, steps: int) -> object:
        """Calls the function; before steps that are due, the first of their batches is computed both ways.

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
        self._note_accumulation()
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
        """Calls the function made anew for whole batches on each worker, where ``error`` came of tracing it for a share."""
        self.plan.reason_not_split, self.plan.unproven = why, ""
        self.checks.end()
        # Where one worker fails alone, the others learn of it here.
        self._session.comm.agree("a step is not split")
        self._begin_whole_batches()
        self._note_accumulation()
        self._make_anew()
        try:
            outputs = self.function(batches)
        except Exception:
            verdicts.forget_split(error)
            raise error from None  # it is the script's
        verdicts.tell(self.plan, self._session, self._describe_step())
        return outputs

    def _refusal_of_tracing(self, error: Exception) -> str:
        """Returns why the step can't be traced for a share, e.g. where it takes a number of rows from a static shape.

        Empty where no trace has failed.
        """
        # Errors of operations, and of any call after the first that came to its end, are of steps
        # that may have changed something.
        runs = getattr(self._model, "run_eagerly", False) or tf.config.functions_run_eagerly()
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

    def is_due(self, steps: int = 1) -> bool:
        """Returns whether the batches of the next call are to be looked at before they count."""
        # In any case, for it counts the steps of epochs, from the first one on.
        is_due = self.checks.is_due(steps)
        if is_due or not self.plan.is_decided:
            self._numbers.note()
            return True
        return self.checks.begins_epoch() and self._numbers.have_changed()

    def decide(self, first: Batch) -> None:
        """Looks at a batch, a share or one that a step cuts, before it counts. All workers call this together."""
        if self.plan.is_decided:
            self._check(cut(first, self._session.input_comm))
        else:
            self._decide(first)

    def _decide(self, first: Batch) -> None:
        self.plan.is_decided = True
        if not self.plan.reason_not_split and _has_unequal_leaves(self._session, first.data):
            self.plan.reason_not_split = "its tensors have unequal numbers of rows"
        parts = known_parts.unknown_parts(self._model, self._stock, self._name)
        asked = self._session.options.verify
        is_tried = not self.plan.reason_not_split and asked != "off"
        self._is_compared = is_tried and bool(parts or asked == "only")
        # A model that its first step builds has no variables yet whose changes could be compared.
        needs_build = is_tried and not getattr(self._model, "built", True)
        trial = (
            self._trial(cut(first, self._session.input_comm))
            if needs_build or self._is_compared
            else None
        )
        if trial is not None and needs_build:
            trial.build()
        if trial is not None and self._is_compared:
            began, self.plan.known_variables = time.monotonic(), _known_variables(self._model)
            few = trial.has_few_rows()
            if not few:
                self._decide_by(trial, self.plan)
            self.checks.note_check(self._session.comm, time.monotonic() - began, few)
        if asked == "only":
            bound = comparison.bound_of(precision_of(self._model))
            verdicts.Verifying.note(self.plan, self._session, self._model.name, self._name, bound)
        if self.plan.reason_not_split or not self._is_compared:
            self.checks.end()
        if self.plan.reason_not_split:
            self._begin_whole_batches()
        verdicts.tell(self.plan, self._session, self._describe_step())
        if self._name == "train_step":
            verdicts.tell_own_statistics(self.plan, self._model, self._session)

    def _decide_by(self, trial: Trial, plan: SplitPlan) -> None:
        decide = first_batch.decide_outputs if self._name == "predict_step" else first_batch.decide
        decide(plan, trial, self._session)

    def _check(self, batch: Share) -> None:
        """Computes rows of a later batch both ways."""
        if _has_unequal_leaves(self._session, batch.data):
            self._change(
                SplitPlan(
                    is_decided=True, reason_not_split="its tensors have unequal numbers of rows"
                )
            )
            return
        began, trial = time.monotonic(), self._trial(batch, self._amount())
        few = trial.has_few_rows()
        if not few and not self.plan.was_compared:  # the batches before had too few rows
            before = dataclasses.replace(self.plan)
            self._decide_by(trial, self.plan)
            # Also of a plan that is like before: decisions by numbers of rows are looked for while
            # a step is traced.
            if self.plan.was_compared or not self.plan.is_like(before):
                self._make_anew()
            verdicts.tell(self.plan, self._session, self._describe_step())
        elif not few and not first_batch.confirm(self.plan, trial, self._session):
            other = self.plan.for_next_comparison()
            self._decide_by(trial, other)
            self._change(other)
        self.checks.note_check(self._session.comm, time.monotonic() - began, few)
        if self.plan.reason_not_split:
            self.checks.end()

    def _change(self, other: SplitPlan) -> None:
        """Splits steps from now on as a later batch has shown."""
        if other.is_like(self.plan):
            return
        self.plan.adopt(other)
        if self.plan.reason_not_split:
            self._begin_whole_batches()
        else:
            # They must begin equal under the new rule.
            state.broadcast(self._session.comm, state.of_model(self._model))
        self._make_anew()
        verdicts.tell_change(self.plan, self._session, self._describe_step(), self.checks.steps + 1)
        verdicts.tell(self.plan, self._session, self._describe_step())
        if self.plan.reason_not_split:
            self.checks.end()

    def _begin_whole_batches(self) -> None:
        """Prepares the workers for computing whole batches each."""
        # Nothing is averaged then: they must begin equal, as a model may not that is built by its
        # first step.
        state.broadcast(self._session.comm, state.of_model(self._model))
        if self._name == "train_step" and self._session.options.sync_batchnorm:
            # Every worker has all rows: the way in which one process computes their statistics
            # rounds less.
            synchronize_batchnorm(self._model, False)

    def _note_accumulation(self) -> None:
        if self._name == "train_step":
            self._accumulation.note(self.plan.accumulates_whole_batches(self.reduces_early))

    def _make_anew(self) -> None:
        if self._make is not None:
            self.function = self._make()

    def _trial(self, batch: Share, amount: Amount = Amount.FEW) -> Trial:
        kind: type[Trial] = PredictingTrial if self._name == "predict_step" else Trial
        return kind(self._model, self._session, self._step, batch, amount)

    def _amount(self) -> Amount:
        """Returns how many rows of a later batch are compared: all of an epoch's last one, where that is cheap."""
        return Amount.ALL if self.checks.ends_epoch and self.plan.compared_all_rows else Amount.FEW

    def _describe_step(self) -> str:
        return f"`{self._name}` of {self._model.name}"


def _known_variables(model: Model) -> set[int]:
    """Ids of the variables of which it is known what workers' values become: of metrics, of Keras's own layers, and where the script says so."""
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
    """Returns an iterator of elements of the given spec, so that a function is not traced for these batches alone."""
    parts = [tf.data.Dataset.from_tensors(batch) for batch in batches]
    joined = functools.reduce(lambda one, other: one.concatenate(other), parts)
    # A data set has static shapes of its own; by a variant it is given those of the spec, and no
    # function is traced.
    return iter(tf.data.experimental.from_variant(tf.data.experimental.to_variant(joined), spec))


def _has_unequal_leaves(session: Session, data: object) -> bool:
    counts = [int(count_rows(leaf)) for leaf in tf.nest.flatten(data) if has_rows(leaf)]
    return any(
        session.comm.agree("tensors of the batch have unequal rows?", float(len(set(counts)) > 1))
    )
