"""Trials of a Keras step on TensorFlow: it runs eagerly on rows of a batch, and leaves no trace."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Self, TypeGuard, cast

import numpy as np
import tensorflow as tf

from syrtos.comm.world import Session
from syrtos.keras import keras_internals
from syrtos.keras.replica import state
from syrtos.keras.split import trial_step
from syrtos.keras.split.plan import SplitPlan
from syrtos.keras.split.python_state import Change, keeping_python_state
from syrtos.keras.split.trial_step import Amount, Assigned, StepOutcome, TrialOfRows
from syrtos.keras.tensorflow import (
    gathering,
    models,
    tf_internals,
    tf_internals_iterators,
    tf_internals_random,
)
from syrtos.keras.tensorflow.assignments import as_one_process, current_step
from syrtos.keras.tensorflow.input import TensorShare
from syrtos.keras.tensorflow.reduction import Reduction
from syrtos.keras.tensorflow.rows import has_rows, static_shape
from syrtos.keras.tensorflow.step import TensorFlowStep, numbers_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Optimizer, Variable
    from syrtos.keras.tensorflow.types import BatchStep, GradientLike, Number, StrategyModel


class TensorFlowTrial(TrialOfRows):
    """A trial of a step on some rows of the first batch.

    See `syrtos.keras.split.trial_step.StepTrial`.
    """

    def __init__(
        self,
        model: Model,
        session: Session,
        step: BatchStep,
        first: TensorShare,
        amount: Amount = Amount.FEW,
    ) -> None:
        first = TensorShare(first.samples, tf_internals.without_optionals(first.data))
        super().__init__(model, session, step, first, _some_rows(first, session, amount), amount)

    def _with_amount(self, amount: Amount) -> Self:
        return type(self)(self._model, self._session, self._step, self._all, amount)

    def compute_as_one_process(self, all_rows: bool) -> StepOutcome:
        if all_rows:
            self._some = self._all
        scope = TensorFlowStep(self._session, self._some, False)
        rows = gathering.rows_of_all(scope, scope.data)

        def run(outcome: StepOutcome) -> object:
            with as_one_process():
                return self._run(self._step, rows)

        return self._outcome(run)

    def compute_split(self, plan: SplitPlan) -> StepOutcome:
        def run(outcome: StepOutcome) -> object:
            scope = TensorFlowStep(
                self._session, self._some, False, reduces_early=True, plan=plan, outcome=outcome
            )
            with scope.as_current_step():
                return scope.finish(
                    self._run(self._step, self._fresh_rows()), logs_are_global=False
                )

        with _synchronizing_batchnorm(self._model):
            return self._outcome(run)

    def _fresh_rows(self) -> object:
        """Returns the rows in containers of their own: a step may take elements out of those."""
        return tf.nest.map_structure(lambda leaf: leaf, self._some.data)

    def backwards(self) -> TensorFlowTrial:
        """Returns a trial of the same step on the same rows, from the last to the first."""
        scope = TensorFlowStep(self._session, self._some, False)
        counts = self._session.comm.agree("rows of each worker", float(self._some.samples))
        start = int(sum(counts[: self._session.world.rank]))
        rows = tf.nest.map_structure(
            lambda leaf: (
                tf.reverse(leaf, [0])[start : start + int(self._some.samples)]
                if has_rows(leaf)
                else leaf
            ),
            gathering.rows_of_all(scope, scope.data),
        )
        same = TensorShare(self._some.samples, rows)
        return type(self)(self._model, self._session, self._step, same, Amount.ALL)

    def precision(self) -> int:
        """Returns the bytes of the least precise dtype of the model's layers."""
        return trial_step.precision_of(self._model)

    def build(self) -> None:
        """Runs the step once for what a model makes in its first call."""
        # Draws for weights stay made. All other draws are undone: one process traces its first
        # call, which draws nothing else.
        scope = TensorFlowStep(self._session, self._some, False)
        rows = gathering.rows_of_all(scope, scope.data)
        with (
            _without_trace(self._model, StepOutcome(), keeps_draws_of_weights=True),
            tf_internals_random.noting_weights(),
            # A `tf.function` that is traced here would leave what it makes without values.
            _eager_functions(),
            contextlib.suppress(Exception),
            as_one_process(),
        ):
            self._run(self._step, rows)

    def _run(self, step: BatchStep, data: object) -> object:
        return cast("StrategyModel", self._model).distribute_strategy.run(step, args=(data,))

    def _compared_leaves(self, logs: object) -> Sequence[Number]:
        return numbers_of(logs)

    def _outcome(self, run: Callable[[StepOutcome], object]) -> StepOutcome:
        outcome, here = StepOutcome(), threading.get_ident()

        def note_draw(shape: object) -> None:
            if threading.get_ident() != here:
                return  # a thread that reads data
            # What is traced now may be computed for each row, as `tf.vectorized_map` does.
            outcome.draws.append(static_shape(shape) if tf.executing_eagerly() else None)

        with (
            _without_trace(self._model, outcome),
            tf_internals_random.without_draws(note_draw),
            tf_internals.without_output(),
            _eager_functions(),
        ):
            self._note_logs(outcome, run)
        return outcome


class PredictingTensorFlowTrial(TensorFlowTrial):
    """A trial of a `predict_step`, whose outputs have rows."""

    def compute_split(self, plan: SplitPlan) -> StepOutcome:
        def run(outcome: StepOutcome) -> object:
            scope = TensorFlowStep(self._session, self._some, False, plan=plan, outcome=outcome)
            with scope.as_current_step():
                return gathering.rows_of_all(scope, self._run(self._step, self._fresh_rows()))

        return self._outcome(run)

    def _compared_leaves(self, logs: object) -> Sequence[Number]:
        dense = [getattr(leaf, "flat_values", leaf) for leaf in tf.nest.flatten(logs)]
        return [leaf for leaf in dense if isinstance(leaf, tf.Tensor) and leaf.dtype != tf.string]


def _some_rows(share: TensorShare, session: Session, amount: Amount) -> TensorShare:
    """Picks rows from all over the share; one more on rank 0, to make workers' counts differ."""
    total = int(share.samples)
    size = trial_step.bytes_of_batch(tf.nest.flatten(share.data))
    each = trial_step.rows_to_take(session.comm, total, size, amount)
    if total <= each:
        return share
    chosen = np.unique(np.linspace(0, total - 1, each).astype(np.int64))

    def take(leaf: object) -> object:
        if not has_rows(leaf) or isinstance(leaf, tf.SparseTensor):
            return leaf
        return tf.gather(leaf, chosen)

    if any(isinstance(leaf, tf.SparseTensor) for leaf in tf.nest.flatten(share.data)):
        return share
    return TensorShare(tf.constant(len(chosen), tf.int64), tf.nest.map_structure(take, share.data))


# -- what leaves no trace ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _without_trace(
    model: Model, outcome: StepOutcome, keeps_draws_of_weights: bool = False
) -> Iterator[None]:
    """Makes optimizers note gradients, not update, within the context, and undoes all at its end.

    Afterwards all variables, generators and Python's numbers are as before. With
    ``keeps_draws_of_weights`` Python's generators and those that have drawn weights keep their new
    states.
    """
    assigned = _AssignedVariables(keeps_draws_of_weights)
    changes: list[Change] = []
    runs_eagerly = bool(getattr(model, "run_eagerly", False))
    watching = tf_internals.watching_assignments(assigned.about_to_assign)
    noting = trial_step.noting_gradients(
        functools.partial(_note_gradients, outcome, not runs_eagerly)
    )
    try:
        # A step that is traced draws nothing in Python, and a data set's threads may draw
        # meanwhile.
        puts_back = ("numpy", "random") if runs_eagerly else ()
        if keeps_draws_of_weights:
            # Keras draws the seeds of weights by `random`, and nothing by NumPy.
            puts_back = puts_back[:1]
        with (
            keeping_python_state(model, puts_back) as changes,
            watching,
            noting,
            tf_internals_iterators.restoring_iterators(),
        ):
            yield
    finally:
        # Else Python runs when a step is traced, and not in each step.
        if runs_eagerly:
            trial_step.add_python_changes(outcome, changes)
        assigned.note_and_put_back(model, outcome)


class _AssignedVariables:
    """The variables that a trial assigns, with their values from before it."""

    def __init__(self, keeps_draws_of_weights: bool) -> None:
        self._keeps_draws_of_weights = keeps_draws_of_weights
        # The ids of generators that have drawn weights, and keep their new states.
        self._of_weights: set[int] = set()
        self._before: dict[int, tuple[tf.Variable, tf.Tensor]] = {}

    def about_to_assign(self, variable: tf.Variable) -> None:
        """Notes the value of a variable from before its first assignment."""
        if (
            self._keeps_draws_of_weights
            and _is_seed(variable)
            and tf_internals_random.is_drawing_weights()
        ):
            self._of_weights.add(id(variable))
        if id(variable) not in self._before and bool(variable.is_initialized()):
            self._before[id(variable)] = variable, tf_internals.value_of(variable)

    def note_and_put_back(self, model: Model, outcome: StepOutcome) -> None:
        """Notes the new values, and puts back those from before."""
        known = [
            *state.of_model(model),
            *(found for metric in model.metrics for found in metric.variables),
        ]
        names = {id(getattr(found, "value", found)): state.name_of(found) for found in known}
        for key, (variable, value) in self._before.items():
            after = tf_internals.value_of(variable)
            if variable.dtype.is_floating or variable.dtype.is_integer or variable.dtype.is_bool:
                name = names.get(key) or state.name_of(variable)
                outcome.assigned[key] = Assigned(name, value.numpy(), after.numpy())
            if key not in self._of_weights:
                tf_internals.set_value(variable, value)


def _note_gradients(
    outcome: StepOutcome,
    builds: bool,
    optimizer: Optimizer,
    grads: Sequence[GradientLike],
    variables: Sequence[Variable],
) -> None:
    """Notes the gradients that an optimizer is given, in the place of an update.

    Args:
        outcome: takes the gradients.
        builds: whether the optimizer's variables are made now.
        optimizer: the one that is given the gradients.
        grads: the gradients.
        variables: those of the gradients; none where the script does not say.
    """
    # What is built in a trace that fails is never initialized, and a step that decides by its rows
    # fails there.
    if builds:
        keras_internals.build_optimizer(optimizer, variables)
    scope = current_step()
    if scope is not None and not scope.reduces_early:
        grads = Reduction(scope.session.comm).apply(grads, (), scope.samples)
    found = (None if g is None else np.asarray(tf.convert_to_tensor(g)) for g in grads)
    trial_step.add_gradients(outcome, found, variables)


def _is_seed(variable: tf.Variable) -> bool:
    """Returns whether a variable is a generator's state: two or more untrained whole numbers."""
    return (
        variable.dtype in (tf.uint32, tf.int64)
        and variable.shape.rank == 1
        and not variable.trainable
    )


@contextlib.contextmanager
def _eager_functions() -> Iterator[None]:
    """Runs `tf.function`s eagerly and without TensorFloat-32, within the context."""
    before, tf32 = (
        tf.config.functions_run_eagerly(),
        tf.config.experimental.tensor_float_32_execution_enabled(),
    )
    tf.config.run_functions_eagerly(True)
    # Its rounding would differ by the number of rows.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)
        tf.config.experimental.enable_tensor_float_32_execution(tf32)


@contextlib.contextmanager
def _synchronizing_batchnorm(model: Model) -> Iterator[None]:
    """Makes BatchNormalization use whole-batch statistics in the context, as in one process."""
    # Elsewhere each worker may use statistics of its own, if the run's options say so.
    layers = list(filter(_is_batchnorm, keras_internals.layers_of(model)))
    before = [layer.synchronized for layer in layers]
    models.synchronize_batchnorm(model)
    try:
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.synchronized = value


def _is_batchnorm(layer: object) -> TypeGuard[models.BatchNormalization]:
    return hasattr(layer, "synchronized")
