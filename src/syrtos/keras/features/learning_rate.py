"""Learning rates, scaled with the number of workers and warmed up over the first epochs."""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError
from syrtos.keras import backend, keras_internals, updates
from syrtos.keras.features.feature import Feature, Fit
from syrtos.keras.replica import state
from syrtos.records import read_record, record_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Optimizer


class ClimbFacts(TypedDict):
    """A `Climb` as it is stored in a snapshot."""

    base: float
    batches: int | None
    going_on: bool


@dataclasses.dataclass
class Climb:
    """The base of a scaled learning rate and its warm-up, kept from one `fit` to the next.

    Attributes:
        base: the rate that the script gave it.
        batches: the number of batches in an epoch, if one has ended.
        going_on: whether the warm-up has begun and not ended.
    """

    base: float
    batches: int | None = None
    going_on: bool = False


@dataclasses.dataclass
class _ScaledRate:
    """The record of an optimizer whose rate is scaled; None: it is not."""

    climb: Climb | None = None


def factor(scale: str, size: int) -> float:
    """Returns the factor by which the learning rate is multiplied on ``size`` workers.

    ``linear``: Goyal et al. 2017, arXiv:1706.02677; ``sqrt``: Krizhevsky 2014, arXiv:1404.5997.
    """
    return {"none": 1.0, "linear": float(size), "sqrt": math.sqrt(size)}[scale]


def rate_of(model: Model) -> float | None:
    """Returns the present learning rate of a model's optimizer; None if absent or not readable."""
    optimizer: Optimizer | None = getattr(model, "optimizer", None)
    if optimizer is None:
        return None
    try:
        # A schedule's rate can't be read on JAX between two steps: it follows a counter in the
        # state of the compiled step.
        if keras_internals.trains_outside(model) and keras_internals.has_schedule(optimizer):
            return None
        return float(np.asarray(optimizer.learning_rate))
    # An optimizer of the script's own may have anything, or nothing, as its rate.
    except (AttributeError, TypeError, ValueError):
        return None


def base_rate(optimizer: object) -> float | None:
    """Returns the rate that the script gave an optimizer whose rate is scaled; None for others."""
    climb = _climb_of(optimizer)
    return climb and climb.base


def set_base_rate(optimizer: object, rate: float) -> None:
    """Notes the script's own rate of an optimizer scaled here, or before its model was saved."""
    record_of(optimizer, _ScaledRate).climb = Climb(rate)


def facts_of(optimizer: object) -> ClimbFacts | None:
    """Returns how far an optimizer's rate has been scaled, for a snapshot; None if not scaled."""
    climb = _climb_of(optimizer)
    return climb and {"base": climb.base, "batches": climb.batches, "going_on": climb.going_on}


def put_back(optimizer: object, facts: ClimbFacts | None) -> None:
    """Restores what `facts_of` gave."""
    if facts is not None:
        record_of(optimizer, _ScaledRate).climb = Climb(**facts)


class ScaledLearningRate(Feature):
    """`--scale-lr` and `--warmup-epochs`."""

    name = "learning_rate"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._told: set[str] = set()

    @classmethod
    def is_asked(cls, session: Session) -> bool:
        return session.options.scale_lr != "none"

    def before_callbacks(self, fit: Fit) -> None:
        # A script that exchanges gradients itself trains alone, with its own rate.
        fit.keep(Scaling(world.sharing())).begin(fit.model)
        if fit.model is not None and len(state.optimizers_of(fit.model)) > 1:
            self._tell(
                "scales the rate of the optimizer that `compile` was given alone; others of the"
                " model keep theirs"
            )

    def train_on_batch_begins(self) -> None:
        self._tell("scales rates in `fit` alone; in `train_on_batch` they are the script's own")

    def _tell(self, what: str) -> None:
        if what not in self._told and self.session.world.rank == 0:
            print(f"syrtos: `--scale-lr` {what}.", file=sys.stderr)
        self._told.add(what)

    def training_begins(self, fit: Fit) -> None:
        if scaling := fit.find(Scaling):
            scaling.scale_if_new()

    def batch_begins(self, fit: Fit) -> None:
        if scaling := fit.find(Scaling):
            scaling.warm_up(fit.epoch, fit.steps, fit.epoch_steps)

    def epoch_ends(self, fit: Fit) -> None:
        if scaling := fit.find(Scaling):
            scaling.epoch_ended(fit.steps - fit.epoch_began_at)


FEATURE = ScaledLearningRate


class Scaling:
    """The learning rate of one `fit`: scaled when an optimizer makes its first step, and warmed up.

    An optimizer that callbacks restore from a backup goes on where the interrupted run was, also in
    the middle of the warm-up.
    """

    def __init__(self, session: Session) -> None:
        self._options = session.options
        self._factor = factor(session.options.scale_lr, session.world.size)
        self._model: Model | None = None
        self._optimizer: Optimizer | None = None
        self._new = False
        self._before = 0

    def begin(self, model: Model) -> None:
        """Notes the rate that the script gave the optimizer.

        It is called before the script's callbacks, which may restore the optimizer.

        Raises:
            ConfigurationError: the optimizer has a schedule in the place of a rate.
        """
        self._model, self._optimizer = model, getattr(model, "optimizer", None)
        if self._factor == 1.0 or self._optimizer is None:
            return
        self._new = not batches_trained(self._optimizer) and base_rate(self._optimizer) is None
        if self._new:
            set_base_rate(self._optimizer, _rate_of(self._optimizer))

    def scale_if_new(self) -> None:
        """Gives an optimizer that has made no step the scaled rate.

        An optimizer that has made steps keeps its own rate. The method is called after the script's
        callbacks, which may have restored the optimizer.
        """
        optimizer = self._optimizer
        if optimizer is None or base_rate(optimizer) is None:
            return
        self._before = batches_trained(optimizer)
        if self._new and not self._before:
            optimizer.learning_rate = optimizer.learning_rate * self._factor

    def warm_up(self, epoch: int, trained: int, batches: int | None) -> None:
        """Raises the rate evenly from the script's to the scaled one, batch by batch.

        Args:
            epoch: the epoch that is being trained, from 0.
            trained: batches of this `fit` before this one.
            batches: batches of an epoch. While they are unknown (the first epoch over a generator)
                the rate climbs from epoch to epoch.
        """
        epochs, model, optimizer = self._options.warmup_epochs, self._model, self._optimizer
        climb = _climb_of(optimizer)
        if model is None or optimizer is None or climb is None or not epochs or self._factor == 1.0:
            return
        batches = batches or climb.batches
        done = (self._before + trained) / (epochs * batches) if batches else epoch / epochs
        if done <= 1.0 or climb.going_on:
            # Else what is assigned to the optimizer is lost on JAX: the state of its compiled step
            # is ahead of it.
            backend.active().settle(model)
            optimizer.learning_rate = climb.base * (1.0 + (self._factor - 1.0) * min(done, 1.0))
        climb.going_on = done < 1.0

    def epoch_ended(self, batches: int) -> None:
        """Notes how many batches an epoch had, for warm-ups over data of unknown length."""
        climb = _climb_of(self._optimizer)
        if climb is not None:
            climb.batches = batches


def batches_trained(optimizer: Optimizer) -> int:
    """Returns how many batches an optimizer was given: with accumulation, more than its updates."""
    inner: Optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    accumulates = updates.accumulates(inner)
    return int(keras_internals.updates_of(inner) if accumulates else inner.iterations)


def _climb_of(optimizer: object) -> Climb | None:
    return read_record(optimizer, _ScaledRate).climb


def _rate_of(optimizer: Optimizer) -> float:
    try:
        rate = float(optimizer.learning_rate)
        # A schedule refuses to be replaced by a number: it is found out before the first step.
        optimizer.learning_rate = rate
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            "`--scale-lr` scales a learning rate that is a number; this optimizer has a schedule."
            " Scale the schedule's own rates in the script, or give the optimizer a number."
        ) from error
    return rate
