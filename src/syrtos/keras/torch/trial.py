"""Trials of a Keras step on torch: it runs on some rows of its first batch, and leaves no trace."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, cast

import keras
import numpy as np
import numpy.typing as npt
import torch

from syrtos.comm import world
from syrtos.comm.communicator import Array
from syrtos.comm.world import Session
from syrtos.keras.patching import Method
from syrtos.keras.replica import state
from syrtos.keras.split import trial_step, verdicts
from syrtos.keras.split.plan import SplitPlan
from syrtos.keras.split.python_state import keeping_python_state
from syrtos.keras.split.trial_step import Amount, Assigned, StepOutcome, TrialOfRows
from syrtos.keras.torch import decisions, gathering, ops, torch_internals
from syrtos.keras.torch.draws import Draw, Recorder
from syrtos.keras.torch.generators import DrawingSteps
from syrtos.keras.torch.rows import TorchShare, has_rows
from syrtos.keras.torch.step import (
    Number,
    TorchStep,
    as_one_process,
    buffers_of,
    current_step,
    noting_assignments,
    number_as_array,
    numbers_of,
)


class TorchTrial(TrialOfRows):
    """A trial of a step on some rows of the first batch.

    See `syrtos.keras.split.trial_step.StepTrial`.
    """

    def __init__(
        self,
        model: keras.Model,
        session: Session,
        step: Method,
        first: TorchShare,
        amount: Amount = Amount.FEW,
        before: TorchTrial | None = None,
    ) -> None:
        super().__init__(model, session, step, first, _some_rows(first, session, amount), amount)
        self._precision = precision_of(model)
        # Why the step can't be split although both ways agree, as it was seen while it was computed
        # split; of trials with more rows too.
        self.reasons: list[str] = [] if before is None else before.reasons

    def _with_amount(self, amount: Amount) -> Self:
        return type(self)(self._model, self._session, self._step, self._all, amount, self)

    def _reads_attributes(self) -> bool:
        return True

    def compute_as_one_process(self, all_rows: bool) -> StepOutcome:
        if all_rows:
            self._some = self._all
        rows = gathering.rows_of_all(
            TorchStep(self._session, self._some.samples, False), self._some.data
        )

        def run(outcome: StepOutcome) -> object:
            with as_one_process():
                return self._step(rows)

        return self._run_without_trace(run)[1]

    def compute_split(self, plan: SplitPlan) -> StepOutcome:
        def run(outcome: StepOutcome) -> object:
            scope = TorchStep(self._session, self._some.samples, False, True, plan, outcome)
            buffers = [buffer._value for buffer in buffers_of(self._model)]
            scope.model = self._model
            with scope.as_current_step():
                with decisions.Watching(keras.tree.flatten(self._some.data)) as watching:
                    logs = self._step(self._fresh_rows())
                if watching.found:
                    self.reasons.append(verdicts.describe_decision(watching.found))
                return scope.finish(logs, False, [b for b in buffers if b.is_floating_point()])

        return self._run_split(run)

    def _run_split(self, run: Callable[[StepOutcome], object]) -> StepOutcome:
        draws, outcome = self._run_without_trace(run)
        for_rows = [draw for draw in draws if draw.has_rows(self._some.samples)]
        self.reasons += filter(None, map(self._describe_draw, for_rows))
        return outcome

    def _describe_draw(self, draw: Draw) -> str:
        """Returns why a draw for rows can't be split; empty where it can."""
        return verdicts.describe_seeded_draw(draw.name) if draw.has_shared_seed else ""

    def _fresh_rows(self) -> object:
        """Returns the rows in containers of their own: a step may take elements out of those."""
        return keras.tree.map_structure(lambda leaf: leaf, self._some.data)

    def backwards(self) -> TorchTrial:
        """Returns a trial of the same step on the same rows, from the last to the first."""
        scope = TorchStep(self._session, self._some.samples, False)
        counts = self._session.comm.agree("rows of each worker", float(self._some.samples))
        start = int(sum(counts[: self._session.world.rank]))

        def take_from_end(leaf: object) -> object:
            if not isinstance(leaf, torch.Tensor) or not leaf.shape:
                return leaf
            return leaf.flip(0)[start : start + self._some.samples]

        rows = keras.tree.map_structure(
            take_from_end, gathering.rows_of_all(scope, self._some.data)
        )
        same = TorchShare(self._some.samples, rows)
        return type(self)(self._model, self._session, self._step, same, Amount.ALL)

    def precision(self) -> int:
        """Returns the bytes of the least precise dtype of the model's layers.

        The dtype of an entered `torch.autocast` counts too.
        """
        return self._precision

    def _compared_leaves(self, logs: object) -> Sequence[Number]:
        return numbers_of(logs)

    def _as_array(self, leaf: Any) -> Array:
        return number_as_array(leaf)

    def _run_without_trace(
        self, run: Callable[[StepOutcome], object]
    ) -> tuple[list[Draw], StepOutcome]:
        outcome, recorder = StepOutcome(), Recorder()
        entered: list[int] = []
        with (
            _without_trace(self._model, outcome),
            torch_internals.without_draws(),
            recorder.noting(),
            torch_internals.noting_autocast(entered.append),
        ):
            self._note_logs(outcome, run)
        self._precision = min([self._precision, *entered])
        outcome.draws = [draw.shape for draw in recorder.draws]
        return recorder.draws, outcome


class PredictingTorchTrial(TorchTrial):
    """A trial of a `predict_step`, whose outputs have rows."""

    def compute_split(self, plan: SplitPlan) -> StepOutcome:
        def run(outcome: StepOutcome) -> object:
            scope = TorchStep(self._session, self._some.samples, False, plan=plan, outcome=outcome)
            scope.model = self._model
            with scope.as_current_step():
                return gathering.rows_of_all(scope, self._step(self._fresh_rows()))

        return self._run_split(run)

    def _describe_draw(self, draw: Draw) -> str:
        if draw.has_shared_seed or draw.is_of_keras:
            return verdicts.describe_draw_of_prediction(draw.name)
        return ""

    def _compared_leaves(self, logs: object) -> Sequence[Number]:
        return [leaf for leaf in keras.tree.flatten(logs) if isinstance(leaf, torch.Tensor)]


def _some_rows(share: TorchShare, session: Session, amount: Amount) -> TorchShare:
    """Picks rows from all over the share.

    Rank 0 picks one more, so that the workers' numbers of rows differ.
    """
    size = trial_step.bytes_of_batch(keras.tree.flatten(share.data))
    each = trial_step.rows_to_take(session.comm, share.samples, size, amount)
    if share.samples <= each:
        return share
    chosen = np.unique(np.linspace(0, share.samples - 1, each).astype(np.int64))

    def take(leaf: object) -> object:
        return leaf[chosen] if has_rows(leaf) else leaf

    return TorchShare(len(chosen), keras.tree.map_structure(take, share.data))


def _wide(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    """Returns a copy in float64, in this process's memory."""
    return tensor.detach().to("cpu", torch.float64).to_dense().numpy().copy()


class _StateBefore:
    """The variables, buffers, gradients and draws of a model before a trial.

    The object tells what the trial has changed, and puts everything back.
    """

    def __init__(self, model: keras.Model) -> None:
        self._assigned: dict[int, tuple[keras.Variable, torch.Tensor]] = {}
        parameters: list[torch.nn.Parameter] = list(model.parameters())
        buffers = torch_internals.named_buffers(model)
        self._kept = [
            (tensor, tensor.detach().clone())
            for tensor in [*parameters, *(buffer for _, buffer in buffers)]
        ]
        # Torch's own batch normalization computes with this worker's rows, as
        # `verdicts.tell_own_statistics` says.
        unsynchronized = {id(buffer) for buffer in torch_internals.statistics_of_batchnorm(model)}
        self._names = {id(tensor): name for name, tensor in [*model.named_parameters(), *buffers]}
        self._compared = [
            (self._names.get(id(t), "a parameter"), t, value)
            for t, value in self._kept
            if id(t) not in unsynchronized
        ]
        self._grads = [
            (p, None if p.grad is None else (p.grad, p.grad.detach().clone())) for p in parameters
        ]
        self._steps = world.part(DrawingSteps).steps

    def about_to_assign(self, variable: keras.Variable) -> None:
        """Keeps the value of a Keras variable from before its first assignment."""
        if id(variable) not in self._assigned and variable._value is not None:
            self._assigned[id(variable)] = variable, variable._value.detach().clone()

    def add_assigned(self, outcome: StepOutcome) -> None:
        """Adds what was assigned since."""
        for key, (variable, value) in self._assigned.items():
            outcome.assigned[key] = Assigned(
                state.name_of(variable), _wide(value), _wide(variable._value)
            )
        of_keras = {id(variable._value) for variable, _ in self._assigned.values()}
        # Torch's own optimizers change parameters in place, without an assignment of Keras.
        for name, tensor, value in self._compared:
            if id(tensor) not in of_keras and not torch.equal(tensor, value):
                outcome.assigned[id(tensor)] = Assigned(name, _wide(value), _wide(tensor))

    def add_gradients_of_backward(self, outcome: StepOutcome) -> None:
        """Adds gradients that `backward` has left in parameters since, or added to older ones."""
        for parameter, held in self._grads:
            if parameter.grad is not None and (
                held is None or not torch.equal(parameter.grad, held[1])
            ):
                outcome.gradients.append(
                    _wide(parameter.grad) - (0.0 if held is None else _wide(held[1]))
                )
                outcome.gradient_names.append(
                    self._names.get(id(parameter), f"gradient {len(outcome.gradients)}")
                )

    def restore(self) -> None:
        """Puts everything back."""
        with torch.no_grad():
            for variable, value in self._assigned.values():
                variable._value.copy_(value)
            for tensor, value in self._kept:
                tensor.copy_(value)
            for parameter, held in self._grads:
                # The same tensor as before, which the script may hold, with the numbers that it
                # had.
                parameter.grad = held and held[0]
                if held:
                    held[0].copy_(held[1])
        world.part(DrawingSteps).steps = self._steps


@contextlib.contextmanager
def _without_trace(model: keras.Model, outcome: StepOutcome) -> Iterator[None]:
    """Context manager: optimizers note gradients instead of updating; its end undoes everything.

    Afterwards variables, buffers, gradients, generators and Python's numbers are as before.
    """
    before = _StateBefore(model)
    hooks = torch_internals.hook_functions(model)
    # What it restores is compared first.
    with keeping_python_state(model, hooks=hooks) as changes:
        try:
            with (
                noting_assignments(before.about_to_assign),
                trial_step.noting_gradients(functools.partial(_keep_gradients, outcome)),
            ):
                yield
        finally:
            before.add_assigned(outcome)
            # Where no optimizer of Keras was given any, an optimizer of torch's takes those of the
            # parameters.
            if not outcome.gradients:
                before.add_gradients_of_backward(outcome)
            before.restore()
    trial_step.add_python_changes(outcome, changes)


def _keep_gradients(
    outcome: StepOutcome,
    optimizer: keras.Optimizer,
    gradients: Sequence[torch.Tensor | None],
    variables: Sequence[keras.Variable],
) -> None:
    """Adds the gradients given to an optimizer, averaged over the workers if they are not yet."""
    scope = current_step()
    if scope is not None and not scope.reduces_early:
        # `weighted_mean` fails where a variable has no gradient: then the trial ends in an error.
        given = cast("list[torch.Tensor]", list(gradients))
        gradients = ops.weighted_mean(scope.session.comm, given, float(scope.samples))
    found = (None if gradient is None else _wide(gradient) for gradient in gradients)
    trial_step.add_gradients(outcome, found, variables)


def precision_of(model: keras.Model) -> int:
    """Returns the bytes of the least precise dtype of a model's layers."""
    # On torch Keras computes in float32 where float64 is asked for.
    return min(4, trial_step.precision_of(model))
