"""The functions that Keras calls for each batch, and the plans by which their steps are split."""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from syrtos.comm.world import Session
from syrtos.keras.features import registry
from syrtos.keras.replica import accumulation, state
from syrtos.keras.split import comparison, first_batch, known_parts, verdicts
from syrtos.keras.split.between_steps import NumbersBetweenSteps
from syrtos.keras.split.checks import Checks, Epochs
from syrtos.keras.split.plan import SplitPlan
from syrtos.keras.split.trial_step import Amount, TrialOfRows

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Variable

# A batch as a backend gives it to a step.
BatchT = TypeVar("BatchT")

_UNEQUAL = "its tensors have unequal numbers of rows"


class SplitFunction(abc.ABC, Generic[BatchT]):
    """A function that Keras calls for each batch (of `make_train_function` and its like).

    Trials on the first batch, and on some later ones, decide the plan by which its steps are split.

    Attributes:
        model: the model whose function it is.
        plan: the way steps are split, as the batches so far have shown.
        reduces_early: whether gradients are reduced where they are made, because code of the
            script's sees them.
        verifying: counts the calls of the function.
        checks: says which batches are looked at.
    """

    def __init__(
        self, model: Model, session: Session, name: str, stock: bool, reduces_early: bool
    ) -> None:
        """
        Args:
            model: see above.
            session: the workers.
            name: the name of the step: `train_step`, `test_step` or `predict_step`.
            stock: whether the step is Keras's own.
            reduces_early: see above.
        """
        self.model, self._session, self._name, self._stock = model, session, name, stock
        self.reduces_early = reduces_early
        self._accumulation = accumulation.Kind(session.comm, model)
        # Workers that train alone for some steps exchange nothing in them, and a comparison is an
        # exchange.
        alone = registry.trains_apart() or (name == "train_step" and session.options.sync_every > 0)
        self.plan = SplitPlan(is_decided=not verdicts.is_split(session) or alone)
        self.plan.reason_not_split = "" if self.plan.is_decided else known_parts.fixed_batch(model)
        self.verifying = verdicts.Verifying(model, session)
        self.checks = Checks(session.part(Epochs), trains=name == "train_step")
        self._numbers = NumbersBetweenSteps(model, session)
        if self.plan.is_decided:
            self.checks.end()

    def note_accumulation(self) -> None:
        """Notes which gradients the next step accumulates.

        All workers call this together before each step.
        """
        if self._name == "train_step":
            self._accumulation.note(self._accumulates_whole_batches())

    def is_due(self, steps: int = 1) -> bool:
        """Returns whether rows of the next call are to be compared before it trains on them.

        ``steps``: the number of steps that the call makes.
        """
        # It is asked before each call, decided or not: it counts the steps of epochs, from the
        # first one on.
        is_due = self.checks.is_due(steps)
        if is_due or not self.plan.is_decided:
            self._numbers.note()
            return True
        return self.checks.begins_epoch() and self._numbers.have_changed()

    def decide(self, first: BatchT) -> None:
        """Compares rows of a batch, before it is trained on. All workers call this together."""
        if self.plan.is_decided:
            self._check(first)
        else:
            self._decide(first)

    # -- what a backend knows --------------------------------------------------------------------

    @abc.abstractmethod
    def _trial(self, batch: BatchT, amount: Amount = Amount.FEW) -> TrialOfRows:
        """Returns a trial of the step on rows of a batch."""

    @abc.abstractmethod
    def _has_unequal_rows(self, batch: BatchT) -> bool:
        """Returns whether tensors of a batch have unequal numbers of rows, on any worker.

        All workers call it together.
        """

    def _accumulates_whole_batches(self) -> bool:
        """Returns whether the next step accumulates gradients of whole batches."""
        return self.plan.accumulates_whole_batches(self.reduces_early)

    @abc.abstractmethod
    def _precision(self) -> int:
        """Returns the bytes of the least precise dtype of the model's layers."""

    def _identity(self, variable: Variable) -> int:
        """Returns the id by which a step notes that it assigns a variable of Keras."""
        return id(variable)

    def _unknown_parts(self) -> Sequence[object]:
        """Returns the parts of the step of which it is not known that they are right on a share."""
        return known_parts.unknown_parts(self.model, self._stock, self._name)

    def _is_compared_by_all(self, mine: bool) -> bool:
        """Returns whether the first batch is compared; ``mine``: this worker has cause to."""
        return mine

    def _needs_build(self) -> bool:
        """Returns whether the model has no variables yet whose changes could be compared."""
        return False

    def _make_anew(self) -> None:
        """Makes the function of steps anew, where it was traced by another plan."""

    # -- the comparison ---------------------------------------------------------------------------

    def _decide(self, first: BatchT) -> None:
        self.plan.is_decided = True
        if not self.plan.reason_not_split and self._has_unequal_rows(first):
            self.plan.reason_not_split = _UNEQUAL
        parts, asked = self._unknown_parts(), self._session.options.verify
        is_tried = not self.plan.reason_not_split and asked != "off"
        is_compared = self._is_compared_by_all(is_tried and bool(parts or asked == "only"))
        needs_build = is_tried and self._needs_build()
        trial = self._trial(first) if needs_build or is_compared else None
        if trial is not None and needs_build:
            trial.build()
        if trial is not None and is_compared:
            began, known = time.monotonic(), known_parts.known_variables(self.model)
            self.plan.known_variables = set(map(self._identity, known))
            few = trial.has_few_rows()
            if not few:
                self._decide_by(trial, self.plan)
            self.checks.note_check(self._session.comm, time.monotonic() - began, few)
        if asked == "only":
            bound = comparison.bound_of(self._precision())
            verdicts.Verifying.note(self.plan, self._session, self.model.name, self._name, bound)
        if self.plan.reason_not_split or not is_compared:
            self.checks.end()
        if self.plan.reason_not_split:
            self._begin_whole_batches()
        self._tell()
        if self._name == "train_step":
            verdicts.tell_own_statistics(self.plan, self.model, self._session)

    # Any: what a trial finds besides is the backend's.
    def _decide_by(self, trial: Any, plan: SplitPlan) -> None:
        decide = first_batch.decide_outputs if self._name == "predict_step" else first_batch.decide
        decide(plan, trial, self._session)

    def _confirms(self, trial: Any) -> bool:
        """Returns whether rows of a later batch agree with the plan."""
        return first_batch.confirm(self.plan, trial, self._session)

    def _check(self, batch: BatchT) -> None:
        """Computes rows of a later batch both ways."""
        if self._has_unequal_rows(batch):
            self._change(SplitPlan(is_decided=True, reason_not_split=_UNEQUAL))
            return
        began, trial = time.monotonic(), self._trial(batch, self._amount())
        few = trial.has_few_rows()
        if not few and not self.plan.was_compared:  # the batches before had too few rows
            before = dataclasses.replace(self.plan)
            self._decide_by(trial, self.plan)
            # Also if the plan has not changed: a new trace finds decisions by a number of rows.
            if self.plan.was_compared or not self.plan.is_like(before):
                self._make_anew()
            self._tell()
        elif not few and not self._confirms(trial):
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
            state.broadcast(self._session.comm, state.of_model(self.model))
        self._make_anew()
        verdicts.tell_change(self.plan, self._session, self._describe_step(), self.checks.steps + 1)
        self._tell()
        if self.plan.reason_not_split:
            self.checks.end()

    def _begin_whole_batches(self) -> None:
        """Prepares the workers for computing whole batches each."""
        # Nothing is averaged from here on, so workers must hold equal state; a model that its first
        # step builds may begin with different weights.
        state.broadcast(self._session.comm, state.of_model(self.model))

    def _amount(self) -> Amount:
        """Returns how many rows of a later batch are compared.

        All rows of an epoch's last batch are compared, where that is cheap.
        """
        return Amount.ALL if self.checks.ends_epoch and self.plan.compared_all_rows else Amount.FEW

    def _tell(self) -> None:
        verdicts.tell(self.plan, self._session, self._describe_step())

    def _describe_step(self) -> str:
        return f"`{self._name}` of {self.model.name}"
