"""Trials of a step of Keras on TensorFlow: it runs eagerly on some rows of its first batch, and leaves no trace."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import tensorflow as tf

from syrtos.comm.world import Session
from syrtos.errors import SyrtosError
from syrtos.keras import keras_internals
from syrtos.keras.features import local_steps
from syrtos.keras.patching import Method
from syrtos.keras.replica import state
from syrtos.keras.split import comparison, first_batch, known_parts, trial_step, verdicts
from syrtos.keras.split.between_steps import NumbersBetweenSteps
from syrtos.keras.split.checks import Checks
from syrtos.keras.split.plan import SplitPlan
from syrtos.keras.split.python_state import Change, keeping_python_state
from syrtos.keras.split.trial_step import Amount, Assigned, StepOutcome, TrialOfRows
from syrtos.keras.tensorflow import gathering, models, tf_internals, tf_internals_random
from syrtos.keras.tensorflow.gradients import Reduction
from syrtos.keras.tensorflow.input import Share, count_rows, cut, has_rows
from syrtos.keras.tensorflow.step import StepScope, current_step, numbers_of, whole_batch


class Function:
    """A function of a model that makes steps, and the plan by which they are split.

    Attributes:
        plan: the way steps are split, as the first batch has shown.
        verifying: counts the calls of the function.
        checks: says which batches are looked at.
        function: makes steps by the plan as it is now.
    """

    def __init__(self, model: Any, session: Session, step: Method, stock: bool, name: str) -> None:
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
        alone = bool(local_steps.rounds()) or (name == "train_step" and session.options.sync_every > 0)
        self.plan = SplitPlan(decided=not verdicts.is_split(session) or alone)
        self.plan.whole = "" if self.plan.decided else known_parts.fixed_batch(model)
        self.verifying = verdicts.Verifying(model, session)
        self.checks = Checks(trains=name == "train_step")
        self._numbers = NumbersBetweenSteps(model, session)
        self._make: Callable[[], Method] | None = None
        self.function: Method = step
        self._is_compared = self._was_called = False
        if self.plan.decided:
            self.checks.end()

    def bind(self, make: Callable[[], Method]) -> None:
        """Takes what makes the function of steps anew, which is traced by the plan, and makes it."""
        self._make = make
        self.function = make()

    def call(self, iterator: Any, spec: Any, steps: int) -> Any:
        """Calls the function; before steps that are due, the first of their batches is computed both ways.

        Args:
            iterator: has the batches.
            spec: of its elements; None where it is no iterator of `tf.data`, and the function takes a list of batches.
            steps: that one call of the function makes.

        Raises:
            StopIteration: there is no batch.
        """
        batches = iterator
        if self.is_due(steps):
            found = [next(iterator)]
            with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
                while len(found) < steps:
                    found.append(next(iterator))
            self.decide(found[-1 if self.checks.ends_epoch else 0])
            batches = found if spec is None else _iterator_over(found, spec)
        elif spec is None:
            batches = list(iterator)
        self.checks.count(steps)
        try:
            outputs = self.function(batches)
        except Exception as error:
            why = self.plan.unproven or self._refusal_of_tracing(error)
            if not why:
                raise
            # While the function is traced no step is made, and no batch taken.
            self.plan.whole, self.plan.unproven = why, ""
            self.checks.end()
            self._session.comm.agree("a step is not split")  # where one fails alone, the others learn of it
            state.broadcast(self._session.comm, state.of_model(self._model))
            self._make_anew()
            try:
                outputs = self.function(batches)
            except Exception:
                verdicts.forget_split(error)
                raise error from None  # it is the script's
            verdicts.tell(self.plan, self._session, self._what())
        self._was_called = True
        return outputs

    def _refusal_of_tracing(self, error: Exception) -> str:
        """Returns why the step can't be traced for a share, e.g. where it takes a number of rows from a static shape. Empty where no trace has failed.

        Errors of operations, and of any call after the first that came to its end, are of steps that may have changed
        something.
        """
        runs = getattr(self._model, "run_eagerly", False) or tf.config.functions_run_eagerly()
        if runs or self._was_called or self.plan.whole or not verdicts.is_split(self._session):
            return ""
        if isinstance(error, StopIteration | SyrtosError | tf.errors.OpError):
            return ""
        return f"it can't be traced for a part of the batch: {trial_step.describe_error(error)}"

    def is_due(self, steps: int = 1) -> bool:
        """Returns whether the batches of the next call are to be looked at before they count."""
        is_due = self.checks.is_due(steps)  # it counts the steps of epochs, from the first one on
        if is_due or not self.plan.decided:
            self._numbers.note()
            return True
        return self.checks.begins_epoch() and self._numbers.have_changed()

    def decide(self, first: Any) -> None:
        """Looks at a batch, a share or one that a step cuts, before it counts. All workers call this together."""
        if self.plan.decided:
            self._check(cut(first, self._session.input_comm))
        else:
            self._decide(first)

    def _decide(self, first: Any) -> None:
        self.plan.decided = True
        if not self.plan.whole and _has_unequal_leaves(self._session, first.data):
            self.plan.whole = "its tensors have unequal numbers of rows"
        parts = known_parts.unknown_parts(self._model, self._stock, self._name)
        asked = self._session.options.verify
        is_tried = not self.plan.whole and asked != "off"
        self._is_compared = is_tried and bool(parts or asked == "only")
        needs_build = is_tried and not getattr(self._model, "built", True)
        trial = self._trial(cut(first, self._session.input_comm)) if needs_build or self._is_compared else None
        if trial is not None and needs_build:
            trial.build()
        if trial is not None and self._is_compared:
            began, self.plan.known_variables = time.monotonic(), _known_variables(self._model)
            few = trial.has_few_rows()
            if not few:
                self._by(trial, self.plan)
            self.checks.note_check(self._session.comm, time.monotonic() - began, few)
        if asked == "only":
            bound = comparison.bound_of(_precision(self._model))
            verdicts.Verifying.note(self.plan, self._session, self._model.name, self._name, bound)
        if self.plan.whole or not self._is_compared:
            self.checks.end()
        if (
            self.plan.whole
        ):  # nothing is averaged: they must begin equal, as a model may not that is built by its first step
            state.broadcast(self._session.comm, state.of_model(self._model))
        verdicts.tell(self.plan, self._session, self._what())
        if self._name == "train_step":
            verdicts.tell_own_statistics(self.plan, self._model, self._session)

    def _by(self, trial: _Trial, plan: SplitPlan) -> None:
        decide = first_batch.decide_outputs if self._name == "predict_step" else first_batch.decide
        decide(plan, trial, self._session)

    def _check(self, batch: Share) -> None:
        """Computes rows of a later batch both ways."""
        if _has_unequal_leaves(self._session, batch.data):
            self._change(SplitPlan(decided=True, whole="its tensors have unequal numbers of rows"))
            return
        began, trial = time.monotonic(), self._trial(batch, self._amount())
        few = trial.has_few_rows()
        if not few and not self.plan.tried:  # the batches before had too few rows
            before = dataclasses.replace(self.plan)
            self._by(trial, self.plan)
            if self.plan.tried or not self.plan.is_like(before):  # decisions are looked for while it is traced
                self._make_anew()
            verdicts.tell(self.plan, self._session, self._what())
        elif not few and not first_batch.confirm(self.plan, trial, self._session):
            other = self.plan.for_next_comparison()
            self._by(trial, other)
            self._change(other)
        self.checks.note_check(self._session.comm, time.monotonic() - began, few)
        if self.plan.whole:
            self.checks.end()

    def _change(self, other: SplitPlan) -> None:
        """Splits steps from now on as a later batch has shown."""
        if other.is_like(self.plan):
            return
        self.plan.adopt(other)
        state.broadcast(self._session.comm, state.of_model(self._model))
        self._make_anew()
        verdicts.tell_change(self.plan, self._session, self._what(), self.checks.steps + 1)
        verdicts.tell(self.plan, self._session, self._what())
        if self.plan.whole:
            self.checks.end()

    def _make_anew(self) -> None:
        if self._make is not None:
            self.function = self._make()

    def _trial(self, batch: Share, amount: Amount = Amount.FEW) -> _Trial:
        kind = _PredictingTrial if self._name == "predict_step" else _Trial
        return kind(self._model, self._session, self._step, batch, amount)

    def _amount(self) -> Amount:
        """Returns how many rows of a later batch are compared: all of an epoch's last one, where that is cheap."""
        return Amount.ALL if self.checks.ends_epoch and self.plan.shows_all_rows else Amount.FEW

    def _what(self) -> str:
        return f"`{self._name}` of {self._model.name}"


def _known_variables(model: Any) -> set[int]:
    """Ids of the variables of which it is known what workers' values become: of metrics, of Keras's own layers, and where the script says so."""
    layers = [layer for layer in keras_internals.layers_of(model) if known_parts.is_known_layer(layer)]
    found = [variable for part in [*layers, *model.metrics] for variable in part.variables]
    found += [variable for variable in state.of_model(model) if _says_aggregation(variable)]
    found += known_parts.copies_of_weights(model)
    return {id(getattr(variable, "value", variable)) for variable in found}


def _says_aggregation(variable: Any) -> bool:
    found = getattr(getattr(variable, "value", variable), "aggregation", None)
    return found not in (None, tf.VariableAggregation.NONE)


def _iterator_over(batches: Sequence[Share], spec: Any) -> Any:
    """Returns an iterator of elements of the given spec, so that a function is not traced for these batches alone."""
    flat = tf.nest.flatten(spec)

    @tf.autograph.experimental.do_not_convert
    def of_any_shape(*leaves: Any) -> Any:
        found = tf.nest.flatten(leaves)
        relaxed = [
            tf.compat.v1.placeholder_with_default(leaf, like.shape) if isinstance(leaf, tf.Tensor) else leaf
            for leaf, like in zip(found, flat, strict=True)
        ]
        return tf.nest.pack_sequence_as(spec, relaxed)

    parts = [tf.data.Dataset.from_tensors(batch) for batch in batches]
    return iter(functools.reduce(lambda one, other: one.concatenate(other), parts).map(of_any_shape))


def _has_unequal_leaves(session: Session, data: Any) -> bool:
    counts = [int(count_rows(leaf)) for leaf in tf.nest.flatten(data) if has_rows(leaf)]
    return any(session.comm.agree("tensors of the batch have unequal rows?", float(len(set(counts)) > 1)))


def _precision(model: Any) -> int:
    names = [str(getattr(layer, "compute_dtype", None) or "float32") for layer in keras_internals.layers_of(model)]
    sizes = [tf.as_dtype(name).size for name in names if "float" in name]
    return min(sizes, default=4)


class _Trial(TrialOfRows):
    """A trial of a step on some rows of the first batch: see `syrtos.keras.split.trial_step.StepTrial`."""

    def __init__(self, model: Any, session: Session, step: Method, first: Share, amount: Amount = Amount.FEW) -> None:
        first = Share(first.samples, tf_internals.without_optionals(first.data))
        super().__init__(model, session, step, first, _some_rows(first, session, amount), amount)

    def _with_amount(self, amount: Amount) -> Self:
        return type(self)(self._model, self._session, self._step, self._all, amount)

    def compute_as_one_process(self, all_rows: bool) -> StepOutcome:
        if all_rows:
            self._some = self._all
        scope = StepScope(self._session, self._some, False)
        rows = gathering.rows_of_all(scope, scope.data)

        def run(outcome: StepOutcome) -> Any:
            with whole_batch():
                return self._run(self._step, rows)

        return self._outcome(run)

    def compute_split(self, plan: SplitPlan) -> StepOutcome:
        def run(outcome: StepOutcome) -> Any:
            early = plan.gradients != "late"
            scope = StepScope(self._session, self._some, False, reduces_early=early, plan=plan, outcome=outcome)
            with scope.as_current_step():
                return scope.finish(self._run(self._step, scope.data), logs_are_global=False)

        with _synchronizing_batchnorm(self._model):
            return self._outcome(run)

    def backwards(self) -> _Trial:
        """Returns a trial of the same step on the same rows, from the last to the first."""
        scope = StepScope(self._session, self._some, False)
        counts = self._session.comm.agree("rows of each worker", float(self._some.samples))
        start = int(sum(counts[: self._session.world.rank]))
        rows = tf.nest.map_structure(
            lambda leaf: tf.reverse(leaf, [0])[start : start + int(self._some.samples)] if has_rows(leaf) else leaf,
            gathering.rows_of_all(scope, scope.data),
        )
        same = Share(self._some.samples, rows)
        return type(self)(self._model, self._session, self._step, same, Amount.ALL)

    def precision(self) -> int:
        """Returns the bytes of the least precise dtype of the model's layers."""
        return _precision(self._model)

    def build(self) -> None:
        """Runs the step once for what a model makes in its first call.

        Draws for weights stay made. All other draws are undone: one process traces its first call, which draws nothing
        else.
        """
        scope = StepScope(self._session, self._some, False)
        rows = gathering.rows_of_all(scope, scope.data)
        with (
            _without_trace(self._model, StepOutcome(), keeps_draws_of_weights=True),
            tf_internals_random.noting_weights(),
            contextlib.suppress(Exception),
            whole_batch(),
        ):
            self._run(self._step, rows)

    def _run(self, step: Method, data: Any) -> Any:
        return self._model.distribute_strategy.run(step, args=(data,))

    def _looked_at(self, logs: Any) -> list[Any]:
        return numbers_of(logs)

    def _outcome(self, run: Callable[[StepOutcome], Any]) -> StepOutcome:
        outcome = StepOutcome()
        with (
            _without_trace(self._model, outcome),
            tf_internals_random.without_draws(),
            tf_internals.without_output(),
            _eager_functions(),
        ):
            try:
                logs = run(outcome)
                found = self._looked_at(logs)
                outcome.logs, outcome.log_names = [np.asarray(v) for v in found], trial_step.names_of(logs, found)
            except Exception as error:
                outcome.error = trial_step.describe_error(error)
        return outcome


class _PredictingTrial(_Trial):
    """A trial of a `predict_step`, whose outputs have rows."""

    def compute_split(self, plan: SplitPlan) -> StepOutcome:
        def run(outcome: StepOutcome) -> Any:
            scope = StepScope(self._session, self._some, False, plan=plan, outcome=outcome)
            with scope.as_current_step():
                return gathering.rows_of_all(scope, self._run(self._step, scope.data))

        return self._outcome(run)

    def _looked_at(self, logs: Any) -> list[Any]:
        dense = [getattr(leaf, "flat_values", leaf) for leaf in tf.nest.flatten(logs)]
        return [leaf for leaf in dense if isinstance(leaf, tf.Tensor) and leaf.dtype != tf.string]


def _some_rows(share: Share, session: Session, amount: Amount) -> Share:
    """Picks rows from all over the share; one more on rank 0, so that the workers' numbers of rows differ."""
    total = int(share.samples)
    size = trial_step.bytes_of_batch(tf.nest.flatten(share.data))
    each = trial_step.rows_to_take(session.comm, total, size, amount)
    if total <= each:
        return share
    chosen = np.unique(np.linspace(0, total - 1, each).astype(np.int64))

    def take(leaf: Any) -> Any:
        if not has_rows(leaf) or isinstance(leaf, tf.SparseTensor):
            return leaf
        return tf.gather(leaf, chosen)

    if any(isinstance(leaf, tf.SparseTensor) for leaf in tf.nest.flatten(share.data)):
        return share
    return Share(tf.constant(len(chosen), tf.int64), tf.nest.map_structure(take, share.data))


# -- what leaves no trace ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _without_trace(model: Any, outcome: StepOutcome, keeps_draws_of_weights: bool = False) -> Iterator[None]:
    """Makes optimizers note gradients instead of updating, within the context, and undoes everything at its end.

    Afterwards all variables, generators and Python's numbers are as before. With ``keeps_draws_of_weights`` Python's
    generators and those that have drawn weights keep their new states.
    """
    of_weights: set[int] = set()
    before: dict[int, tuple[Any, tf.Tensor]] = {}
    changes: list[Change] = []

    def about_to_assign(variable: Any) -> None:
        if keeps_draws_of_weights and _is_seed(variable) and tf_internals_random.is_drawing_weights():
            of_weights.add(id(variable))
        if id(variable) not in before and bool(variable.is_initialized()):
            before[id(variable)] = variable, tf_internals.value_of(variable)

    def keep_gradients(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        if not getattr(model, "run_eagerly", False):
            # What is built in a trace that fails is never initialized, and a step that decides by its rows fails there.
            keras_internals.build_optimizer(optimizer, variables)
        names = [state.name_of(variable) for variable in variables]
        scope = current_step()
        if scope is not None and not scope.reduces_early:
            grads = Reduction(scope.session.comm).apply(grads, (), scope.samples)
        for index, gradient in enumerate(grads):
            if gradient is not None:
                outcome.gradients.append(np.asarray(tf.convert_to_tensor(gradient)))
                outcome.gradient_names.append(names[index] if index < len(names) else f"gradient {index + 1}")

    watching, noting = tf_internals.watching_assignments(about_to_assign), trial_step.noting_gradients(keep_gradients)
    try:
        # A step that is traced draws nothing in Python, and a data set's threads may draw meanwhile.
        puts_python_back = not keeps_draws_of_weights and bool(getattr(model, "run_eagerly", False))
        with (
            keeping_python_state(model, puts_python_back) as changes,
            watching,
            noting,
            tf_internals.restoring_iterators(),
        ):
            yield
    finally:
        if getattr(model, "run_eagerly", False):  # else Python runs when a step is traced, and not in each
            trial_step.add_python_changes(outcome, changes)
        known = [*state.of_model(model), *(found for metric in model.metrics for found in metric.variables)]
        names = {id(getattr(found, "value", found)): state.name_of(found) for found in known}
        for key, (variable, value) in before.items():
            after = tf_internals.value_of(variable)
            if variable.dtype.is_floating or variable.dtype.is_integer or variable.dtype.is_bool:
                name = names.get(key) or state.name_of(variable)
                outcome.assigned[key] = Assigned(name, value.numpy(), after.numpy())
            if key not in of_weights:
                tf_internals.set_value(variable, value)


def _is_seed(variable: Any) -> bool:
    """Returns whether a variable is the state of a generator: two or more whole numbers that nothing trains."""
    return variable.dtype in (tf.uint32, tf.int64) and variable.shape.rank == 1 and not variable.trainable


@contextlib.contextmanager
def _eager_functions() -> Iterator[None]:
    """Runs `tf.function`s eagerly and without TensorFloat-32, within the context."""
    before, tf32 = tf.config.functions_run_eagerly(), tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.run_functions_eagerly(True)
    # Its rounding would differ by the number of rows.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)
        tf.config.experimental.enable_tensor_float_32_execution(tf32)


@contextlib.contextmanager
def _synchronizing_batchnorm(model: Any) -> Iterator[None]:
    """Makes BatchNormalization use the statistics of the whole batch, as in one process, within the context.

    Elsewhere each worker may use statistics of its own, if the run's options say so.
    """
    layers = [layer for layer in keras_internals.layers_of(model) if hasattr(layer, "synchronized")]
    before = [layer.synchronized for layer in layers]
    models.synchronize_batchnorm(model)
    try:
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.synchronized = value
