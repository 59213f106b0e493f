"""The functions of a model on torch that Keras calls for each batch."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from syrtos.comm.world import Session
from syrtos.keras.patching import Method
from syrtos.keras.split.known_parts import script_sees_gradients
from syrtos.keras.split.plan import SplitPlan
from syrtos.keras.split.split_function import SplitFunction
from syrtos.keras.split.trial_step import Amount
from syrtos.keras.torch import gradients, torch_internals
from syrtos.keras.torch.rows import TorchShare
from syrtos.keras.torch.trial import PredictingTorchTrial, TorchTrial, precision_of


class TorchFunction(SplitFunction[TorchShare]):
    """A function of a model on torch, which may have hooks.

    Trials record its decisions by numbers of rows.
    """

    def __init__(self, model: keras.Model, session: Session, name: str, stock: bool) -> None:
        """
        Args:
            model: the model whose function it is.
            session: the workers.
            name: the name of the step.
            stock: whether the step is Keras's own.
        """
        early = script_sees_gradients(model, stock, name) or (
            name == "train_step" and gradients.script_reads_gradients(session)
        )
        super().__init__(model, session, name, stock, early)
        self._keras_model = model

    def _trial(self, batch: TorchShare, amount: Amount = Amount.FEW) -> TorchTrial:
        kind = PredictingTorchTrial if self._name == "predict_step" else TorchTrial
        step: Method = getattr(self.model, self._name)
        return kind(self._keras_model, self._session, step, batch, amount)

    def _has_unequal_rows(self, batch: TorchShare) -> bool:
        mine = float(batch.is_uneven)
        return any(self._session.comm.agree("tensors of the batch have unequal rows?", mine))

    def _unknown_parts(self) -> Sequence[object]:
        return [*super()._unknown_parts(), *torch_internals.hooks_of(self._keras_model)]

    def _is_compared_by_all(self, mine: bool) -> bool:
        # Hooks may differ between workers, and a trial needs all of them.
        return any(self._session.comm.agree("compare the first batch?", float(mine)))

    def _precision(self) -> int:
        return precision_of(self._keras_model)

    def _decide_by(self, trial: TorchTrial, plan: SplitPlan) -> None:
        super()._decide_by(trial, plan)
        # Both ways may agree on these rows where the step decides by a number of them, and differ
        # on later ones; and they have no random draws.
        found = self._find_reason(trial)
        if found and not plan.reason_not_split:
            plan.reason_not_split = found

    def _confirms(self, trial: TorchTrial) -> bool:
        return super()._confirms(trial) and not self._find_reason(trial)

    def _find_reason(self, trial: TorchTrial) -> str:
        """Returns why the step can't be split, as any worker has seen; empty if none has.

        All workers call this together.
        """
        found = self._session.comm.allgather_object(trial.reasons)
        return next((reasons[0] for reasons in found if reasons), "")
