"""Trials of a step of Keras on torch: it runs on some rows of its first batch, and leaves no trace."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import keras
import numpy as np
import torch

from syrtos.comm.world import Session
from syrtos.keras import keras_internals
from syrtos.keras.features import local_steps
from syrtos.keras.patching import Method
from syrtos.keras.replica import state
from syrtos.keras.split import comparison, first_batch, known_parts, trial_step, verdicts
from syrtos.keras.split.between_steps import NumbersBetweenSteps
from syrtos.keras.split.checks import Checks
from syrtos.keras.split.plan import SplitPlan
from syrtos.keras.split.python_state import keeping_python_state
from syrtos.keras.split.trial_step import Amount, Assigned, StepOutcome, TrialOfRows
from syrtos.keras.torch import decisions, gathering, ops, torch_internals
from syrtos.keras.torch.rows import Share
from syrtos.keras.torch.step import (
    Drawn,
    StepScope,
    buffers_of,
    current_step,
    noting_assignments,
    number_as_array,
    numbers_of,
    whole_batch,
)


class Function:
    """A function of a model that makes steps, and the plan by which they are split.

    Attributes:
        model: the model whose function it is.
        plan: the way steps are split, as the first batch has shown.
        verifying: counts the calls of the function.
        checks: says which batches are looked at.
    """

    def __init__(self, model: Any, session: Session, name: str, stock: bool) -> None:
        """
        Args:
            model: the model whose function it is.
            session: the workers.
            name: the name of the step: `train_step`, `test_step` or `predict_step`.
            stock: whether the step is Keras's own.
        """
        self.model, self._session, self._name, self._stock = model, session, name, stock
        alone = bool(local_steps.rounds()) or (name == "train_step" and session.options.sync_every > 0)
        self.plan = SplitPlan(decided=not verdicts.is_split(session) or alone)
        self.plan.whole = "" if self.plan.decided else known_parts.fixed_batch(model)
        self.verifying = verdicts.Verifying(model, session)
        self.checks = Checks(trains=name == "train_step")
        self._numbers = NumbersBetweenSteps(model, session)
        if self.plan.decided:
            self.checks.end()

    def is_due(self) -> bool:
        """Returns whether the next batch is to be looked at before it counts."""
        is_due = self.checks.is_due()  # it counts the steps of epochs, from the first one on
        if is_due or not self.plan.decided:
            self._numbers.note()
            return True
        return self.checks.begins_epoch() and self._numbers.have_changed()

    def decide(self, first: Share) -> None:
        """Looks at a batch, before it counts. All workers call this together."""
        if self.plan.decided:
            self._check(first)
        else:
            self._decide(first)

    def _decide(self, first: Share) -> None:
        self.plan.decided = True
        if first.is_uneven:
            self.plan.whole = self.plan.whole or "its tensors have unequal numbers of rows"
        parts = known_parts.unknown_parts(self.model, self._stock, self._name)
        parts += torch_internals.hooks_of(self.model)
        asked = self._session.options.verify
        is_compared = not self.plan.whole and asked != "off" and bool(parts or asked == "only")
        is_compared = any(self._session.comm.agree("compare the first batch?", float(is_compared)))  # hooks may differ
        if is_compared:
            began, self.plan.known_variables = time.monotonic(), _known_variables(self.model)
            trial = self._trial(first)
            few = trial.has_few_rows()
            if not few:
                self._by(trial, self.plan)
            self.checks.note_check(self._session.comm, time.monotonic() - began, few)
        if asked == "only":
            bound = comparison.bound_of(_precision(self.model))
            verdicts.Verifying.note(self.plan, self._session, self.model.name, self._name, bound)
        if self.plan.whole or not is_compared:
            self.checks.end()
        if (
            self.plan.whole
        ):  # nothing is averaged: they must begin equal, as a model may not that is built by its first step
            state.broadcast(self._session.comm, state.of_model(self.model))
        verdicts.tell(self.plan, self._session, self._what())
        if self._name == "train_step":
            verdicts.tell_own_statistics(self.plan, self.model, self._session)

    def _check(self, batch: Share) -> None:
        """Computes rows of a later batch both ways."""
        began, trial, steps = time.monotonic(), self._trial(batch, self._amount()), self.checks.steps
        few = batch.is_uneven or trial.has_few_rows()
        if not few and not self.plan.tried:  # the batches before had too few rows
            self._by(trial, self.plan)
            verdicts.tell(self.plan, self._session, self._what())
        elif not few and (not first_batch.confirm(self.plan, trial, self._session) or self._decision(trial)):
            other = self.plan.for_next_comparison()
            self._by(trial, other)
            if not other.is_like(self.plan):
                self.plan.adopt(other)
                state.broadcast(self._session.comm, state.of_model(self.model))
                verdicts.tell_change(self.plan, self._session, self._what(), steps + 1)
                verdicts.tell(self.plan, self._session, self._what())
        self.checks.note_check(self._session.comm, time.monotonic() - began, few)
        if self.plan.whole:
            self.checks.end()

    def _by(self, trial: _Trial, plan: SplitPlan) -> None:
        decide = first_batch.decide_outputs if self._name == "predict_step" else first_batch.decide
        decide(plan, trial, self._session)
        found = self._decision(trial)
        if found and not plan.whole:
            plan.whole = verdicts.describe_decision(found)

    def _decision(self, trial: _Trial) -> str:
        """Returns what the step decides by, on any worker; empty for nothing. All workers call it together."""
        return next((found[0] for found in self._session.comm.allgather_object(trial.decisions) if found), "")

    def _trial(self, batch: Share, amount: Amount = Amount.FEW) -> _Trial:
        kind = _PredictingTrial if self._name == "predict_step" else _Trial
        return kind(self.model, self._session, getattr(self.model, self._name), batch, amount)

    def _amount(self) -> Amount:
        """Returns how many rows of a later batch are compared: all of an epoch's last one, where that is cheap."""
        return Amount.ALL if self.checks.ends_epoch and self.plan.shows_all_rows else Amount.FEW

    def _what(self) -> str:
        return f"`{self._name}` of {self.model.name}"


def _known_variables(model: Any) -> set[int]:
    """Ids of the variables of which it is known what workers' values become: of metrics, of Keras's own layers, and where the script says so."""
    layers = [layer for layer in keras_internals.layers_of(model) if known_parts.is_known_layer(layer)]
    found = [variable for part in [*layers, *model.metrics] for variable in part.variables]
    said = [
        variable
        for variable in state.variables_in(model)
        if getattr(variable, "aggregation", None) not in (None, "none")
    ]
    return {id(variable) for variable in [*found, *said, *known_parts.copies_of_weights(model)]}


def _precision(model: Any) -> int:
    names = [str(getattr(layer, "compute_dtype", None) or "float32") for layer in keras_internals.layers_of(model)]
    return 2 if any("16" in name for name in names) else 4


class _Trial(TrialOfRows):
    """A trial of a step on some rows of the first batch: see `syrtos.keras.split.trial_step.StepTrial`."""

    def __init__(
        self,
        model: Any,
        session: Session,
        step: Method,
        first: Share,
        amount: Amount = Amount.FEW,
        before: _Trial | None = None,
    ) -> None:
        super().__init__(model, session, step, first, _some_rows(first, session, amount), amount)
        self._precision = _precision(model)
        # By which the step decides by a number of its rows, once it was split; of trials with more rows too.
        self.decisions: list[str] = [] if before is None else before.decisions

    def _with_amount(self, amount: Amount) -> Self:
        return type(self)(self._model, self._session, self._step, self._all, amount, self)

    def compute_as_one_process(self, all_rows: bool) -> StepOutcome:
        if all_rows:
            self._some = self._all
        rows = gathering.rows_of_all(StepScope(self._session, self._some.samples, False), self._some.data)

        def run(outcome: StepOutcome) -> Any:
            with whole_batch():
                return self._step(rows)

        return self._outcome(run)

    def compute_split(self, plan: SplitPlan) -> StepOutcome:
        def run(outcome: StepOutcome) -> Any:
            early = plan.gradients != "late"
            scope = StepScope(self._session, self._some.samples, False, early, plan, outcome)
            buffers = [buffer._value for buffer in buffers_of(self._model)]
            scope.model = self._model
            with scope.as_current_step():
                with decisions.Watching(keras.tree.flatten(self._some.data)) as watching:
                    logs = self._step(self._some.data)
                self.decisions += filter(None, [watching.found])
                return scope.finish(logs, False, [b for b in buffers if b.is_floating_point()])

        return self._outcome(run)

    def backwards(self) -> _Trial:
        """Returns a trial of the same step on the same rows, from the last to the first."""
        scope = StepScope(self._session, self._some.samples, False)
        counts = self._session.comm.agree("rows of each worker", float(self._some.samples))
        start = int(sum(counts[: self._session.world.rank]))

        def mine(leaf: Any) -> Any:
            return leaf.flip(0)[start : start + self._some.samples] if getattr(leaf, "shape", ()) else leaf

        rows = keras.tree.map_structure(mine, gathering.rows_of_all(scope, self._some.data))
        same = Share(self._some.samples, rows)
        return type(self)(self._model, self._session, self._step, same, Amount.ALL)

    def precision(self) -> int:
        """Returns the bytes of the least precise dtype of the model's layers, or of `torch.autocast` where the step has entered it."""
        return self._precision

    def _looked_at(self, logs: Any) -> list[Any]:
        return numbers_of(logs)

    def _outcome(self, run: Callable[[StepOutcome], Any]) -> StepOutcome:
        outcome = StepOutcome()
        entered: list[int] = []
        with (
            _without_trace(self._model, outcome),
            torch_internals.without_draws(),
            torch_internals.noting_autocast(entered.append),
        ):
            try:
                logs = run(outcome)
                found = self._looked_at(logs)
                outcome.logs, outcome.log_names = [number_as_array(v) for v in found], trial_step.names_of(logs, found)
            except Exception as error:
                outcome.error = trial_step.describe_error(error)
        self._precision = min([self._precision, *entered])
        return outcome


class _PredictingTrial(_Trial):
    """A trial of a `predict_step`, whose outputs have rows."""

    def compute_split(self, plan: SplitPlan) -> StepOutcome:
        def run(outcome: StepOutcome) -> Any:
            scope = StepScope(self._session, self._some.samples, False, plan=plan, outcome=outcome)
            scope.model = self._model
            with scope.as_current_step():
                return gathering.rows_of_all(scope, self._step(self._some.data))

        return self._outcome(run)

    def _looked_at(self, logs: Any) -> list[Any]:
        return [leaf for leaf in keras.tree.flatten(logs) if isinstance(leaf, torch.Tensor)]


def _some_rows(share: Share, session: Session, amount: Amount) -> Share:
    """Picks rows from all over the share; one more on rank 0, so that the workers' numbers of rows differ."""
    size = trial_step.bytes_of_batch(keras.tree.flatten(share.data))
    each = trial_step.rows_to_take(session.comm, share.samples, size, amount)
    if share.samples <= each:
        return share
    chosen = np.unique(np.linspace(0, share.samples - 1, each).astype(np.int64))

    def take(leaf: Any) -> Any:
        return leaf[chosen] if getattr(leaf, "shape", ()) else leaf

    return Share(len(chosen), keras.tree.map_structure(take, share.data))


def _wide(tensor: torch.Tensor) -> Any:
    """Returns a copy in float64, in this process's memory."""
    return tensor.detach().to("cpu", torch.float64).to_dense().numpy().copy()


@contextlib.contextmanager
def _without_trace(model: Any, outcome: StepOutcome) -> Iterator[None]:
    """Makes optimizers note gradients instead of updating, within the context, and undoes everything at its end.

    Afterwards variables, buffers, gradients, generators and Python's numbers are as before.
    """
    before: dict[int, tuple[Any, torch.Tensor]] = {}
    parameters = list(model.parameters())
    buffers = torch_internals.named_buffers(model)
    kept = [(tensor, tensor.detach().clone()) for tensor in [*parameters, *(buffer for _, buffer in buffers)]]
    unsynchronized = {id(buffer) for buffer in torch_internals.statistics_of_batchnorm(model)}
    names = {id(tensor): name for name, tensor in [*model.named_parameters(), *buffers]}
    compared = [(names.get(id(t), "a parameter"), t, value) for t, value in kept if id(t) not in unsynchronized]
    grads = [(p, None if p.grad is None else (p.grad, p.grad.detach().clone())) for p in parameters]
    steps = Drawn.steps

    def about_to_assign(variable: Any) -> None:
        if id(variable) not in before and variable._value is not None:
            before[id(variable)] = variable, variable._value.detach().clone()

    def keep_gradients(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        names = [state.name_of(variable) for variable in variables]
        scope = current_step()
        if scope is not None and not scope.reduces_early:
            gradients = ops.weighted_mean(scope.session.comm, list(gradients), float(scope.samples))
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                outcome.gradients.append(gradient.detach().to("cpu", torch.float64).to_dense().numpy().copy())
                outcome.gradient_names.append(names[index] if index < len(names) else f"gradient {index + 1}")

    hooks = torch_internals.hook_functions(model)
    with keeping_python_state(model, hooks=hooks) as changes:  # what it restores is compared first
        try:
            with noting_assignments(about_to_assign), trial_step.noting_gradients(keep_gradients):
                yield
        finally:
            for key, (variable, value) in before.items():
                outcome.assigned[key] = Assigned(state.name_of(variable), _wide(value), _wide(variable._value))
            of_keras = {id(variable._value) for variable, _ in before.values()}
            for name, tensor, value in compared:  # changed in place, as torch's own optimizers do
                if id(tensor) not in of_keras and not torch.equal(tensor, value):
                    outcome.assigned[id(tensor)] = Assigned(name, _wide(value), _wide(tensor))
            if not outcome.gradients:  # no optimizer of Keras was given any: those that `backward` has left
                for parameter, held in grads:
                    if parameter.grad is not None and (held is None or not torch.equal(parameter.grad, held[1])):
                        outcome.gradients.append(_wide(parameter.grad) - (0.0 if held is None else _wide(held[1])))
                        outcome.gradient_names.append(names.get(id(parameter), f"gradient {len(outcome.gradients)}"))
            with torch.no_grad():
                for variable, value in before.values():
                    variable._value.copy_(value)
                for tensor, value in kept:
                    tensor.copy_(value)
                for parameter, held in grads:
                    parameter.grad = held and held[0]
                    if held:
                        held[0].copy_(held[1])
            Drawn.steps = steps
    trial_step.add_python_changes(outcome, changes)
