"""The learning-rate range test of a trial.

The rate rises by the same factor from batch to batch, and the loss of each batch is recorded. Smith
2015, "Cyclical Learning Rates for Training Neural Networks", arXiv:1506.01186.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from syrtos.comm import world
from syrtos.errors import ConfigurationError
from syrtos.keras import backend, keras_internals
from syrtos.keras.features import learning_rate
from syrtos.settings import TuneTrial

if TYPE_CHECKING:
    from syrtos.keras.protocols import Logs, Model, Optimizer

# The test ends where the smoothed loss is so many times the best one. The mean is over about ten
# batches.
DIVERGED = 4.0
WEIGHT = 0.9


class Range:
    """A learning-rate range test.

    Attributes:
        rates: the rates of the batches so far.
        losses: the loss of each of them, over the rows of all workers.
    """

    def __init__(self, model: Model, trial: TuneTrial) -> None:
        """Raises ConfigurationError where the model has no optimizer with a rate."""
        optimizer = getattr(model, "optimizer", None)
        if optimizer is None:
            raise ConfigurationError(
                "`fit` is called on a model without an optimizer: `syrtos tune lr` has no rate to"
                " raise. Give `compile` one."
            )
        self.own = learning_rate.rate_of(model)
        self._optimizer: Optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        self._model, self._trial = model, trial
        self.rates: list[float] = []
        self.losses: list[float] = []
        self._rate = trial.first_rate
        self._mean, self._norm, self._best = 0.0, 0.0, math.inf
        _take_schedule_away(self._optimizer, trial.first_rate)
        if hasattr(model, "steps_per_execution"):
            # The rate changes between any two batches, so a call may train on one alone.
            model.steps_per_execution = 1

    def begin(self, batch: int, logs: Logs = None) -> None:
        """Sets the rate of the batch that begins, and resets the metrics."""
        del batch, logs
        trial = self._trial
        progress = len(self.losses) / max(trial.steps - 1, 1)
        self._rate = trial.first_rate * (trial.last_rate / trial.first_rate) ** progress
        backend.active().settle(self._model)
        # So the loss of the logs is that of the batch, and no mean since the epoch began.
        self._model.reset_metrics()
        # Noted in `end` alone: the data may end here, and then there is no such batch.
        self._optimizer.learning_rate = self._rate

    def end(self, logs: Logs) -> bool:
        """Notes the loss of a batch after it; returns whether the test is over.

        Raises:
            ConfigurationError: there is no loss, or it is not finite in the first batch.
        """
        mine = float(np.asarray(_loss_of(logs or {})))
        # The losses are equal already, but in a script that exchanges itself.
        everyone = world.current().comm.agree("loss of a batch", mine)
        loss = float(np.mean(everyone))
        self.rates.append(self._rate)
        self.losses.append(loss)
        if not math.isfinite(loss):
            if len(self.losses) == 1:
                raise ConfigurationError(
                    f"The loss is {loss} in the first batch, at a learning rate of"
                    f" {self.rates[0]:g}. Look for values in the data that are not finite, and for"
                    " logarithms or divisions in the loss; `syrtos run --on-nan stop` names the"
                    " records of the batch."
                )
            return True
        self._mean = WEIGHT * self._mean + (1 - WEIGHT) * loss
        self._norm = WEIGHT * self._norm + (1 - WEIGHT)
        smoothed = self._mean / self._norm
        self._best = min(self._best, smoothed)
        return len(self.losses) >= self._trial.steps or smoothed > DIVERGED * abs(self._best)

    def facts(self) -> dict[str, object]:
        """Returns what was measured, for the launcher, which draws conclusions."""
        return {
            "rates": self.rates,
            "losses": self.losses,
            "optimizer": type(self._optimizer).__name__,
            "rate": self.own,
        }


def _loss_of(logs: Mapping[str, object]) -> object:
    if "loss" in logs:
        return logs["loss"]
    likely = [name for name in logs if "loss" in name]
    if len(likely) == 1:
        return logs[likely[0]]
    raise ConfigurationError(
        "`fit` gives no `loss`: a training step of the script's own returns"
        f" {', '.join(logs) or 'nothing'}. Let `train_step` return the loss that the optimizer"
        " makes smaller under the name `loss`."
    )


def _take_schedule_away(optimizer: Optimizer, rate: float) -> None:
    """Sets the rate of an optimizer; a schedule, which refuses to be set, is replaced by a number.

    Raises:
        ConfigurationError: the optimizer is of a kind without such a rate.
    """
    try:
        if not keras_internals.has_fixed_rate(optimizer):
            keras_internals.give_fixed_rate(optimizer, rate)
        optimizer.learning_rate = rate
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"The learning rate of {type(optimizer).__name__} can't be set: {error}. `syrtos tune"
            " lr` needs an optimizer of Keras with one rate."
        ) from error
