"""`--sync-every H`: in `fit` each worker trains alone for H steps between two meetings (local SGD).

At a meeting the workers exchange by how much their weights have changed. The mean of the changes,
by samples, is the gradient of an outer optimizer, SGD with Nesterov momentum: DiLoCo (Douillard et
al. 2023, arXiv:2311.08105, algorithm 1). With an outer rate of 1 and no momentum, the default, all
take the mean of the weights; with plain SGD inside and an H of 1 that is synchronous training.

The workers also meet at the end of each epoch: what is evaluated, saved and decided there is equal
on all of them, and the epoch's metrics count all samples.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from syrtos.checkpoint.encoding import Arrays
from syrtos.comm.communicator import Array
from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError
from syrtos.keras import backend, keras_internals
from syrtos.keras.features.added_metrics import warn_of_own_metrics
from syrtos.keras.features.feature import Feature, Fit
from syrtos.keras.features.rounds import Rounds
from syrtos.keras.patching import Patch
from syrtos.keras.replica import state

if TYPE_CHECKING:
    from syrtos.keras.protocols import Logs, Model, R
    from syrtos.keras.updates import Update


class LocalSteps(Feature):
    """`--sync-every`: the rounds of the innermost `fit` in this process, if one is running."""

    name = "local_steps"
    nesting = 1  # a worker without rows makes no update that could be looked at

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._rounds: Rounds | None = None

    @classmethod
    def is_asked(cls, session: Session) -> bool:
        return state.optimizers_differ()

    def patches(self) -> Sequence[Patch]:
        return [
            Patch(
                "keras:Model",
                "_get_metrics_result_or_logs",
                self._meeting_at_end_of_epoch,
                "It is called after an epoch's last batch, before the evaluation.",
            )
        ]

    def _meeting_at_end_of_epoch(
        self, original: Callable[[Model, Logs], R]
    ) -> Callable[[Model, Logs], R]:
        """Wraps the trainer's method that gives an epoch's logs."""

        def get_metrics_result_or_logs(model: Model, logs: Logs) -> R:
            found = self._rounds
            return original(
                model, found.epoch_ends(logs) if found and found.trains(model) else logs
            )

        return get_metrics_result_or_logs

    @contextlib.contextmanager
    def around_fit(self) -> Iterator[None]:
        """Context manager around each `fit`.

        The rounds of an outer `fit` meet first, and go on after the inner one.
        """
        outer = self._rounds
        # The models of the outer and the inner `fit` may share weights.
        self.meet()
        self._rounds = None
        try:
            yield
        finally:
            self._rounds = outer

    def training_begins(self, fit: Fit) -> None:
        """Begins the rounds of a `fit`, when all workers hold the same weights.

        Raises:
            ConfigurationError: the model has no weights yet, or is not one that can be trained so.
        """
        if fit.model is None or not fit.is_of_keras:
            return
        of_keras = keras_internals.keras_of(fit.model)
        if backend.computes_global_batches() or of_keras is not sys.modules.get("keras"):
            raise ConfigurationError(
                "`--sync-every` trains models of Keras 3 on TensorFlow and torch. Leave it out."
            )
        warn_of_own_metrics(fit.model)
        self._rounds = fit.keep(Rounds(fit.model))

    def epoch_begins(self, fit: Fit) -> None:
        if rounds := fit.find(Rounds):
            rounds.epoch_begins()

    def batch_begins(self, fit: Fit) -> None:
        if rounds := fit.find(Rounds):
            rounds.batch_begins()

    def batch_computed(self, fit: Fit, steps: int) -> None:
        if rounds := fit.find(Rounds):
            rounds.batch_ended(steps)

    def asks_to_stop(self, fit: Fit, asks: bool) -> bool:
        rounds = fit.find(Rounds)
        return rounds.asks_to_stop() if rounds else asks

    def evaluation_begins(self, model: Model) -> None:
        if self._rounds:
            self._rounds.evaluation_begins(model)

    def evaluation_ends(self, model: Model) -> None:
        if self._rounds:
            self._rounds.evaluation_ends(model)

    def train_on_batch_begins(self) -> None:
        # There is no `fit` at whose end the workers would meet.
        raise ConfigurationError(
            "`--sync-every` was given, and the script calls `train_on_batch`: workers would never"
            " meet, for only `fit` counts their steps. Train by `fit`, or leave out --sync-every."
        )

    def trains_apart(self) -> bool:
        return self._rounds is not None

    def is_between_meetings(self, fit: Fit) -> bool:
        rounds = fit.find(Rounds)
        return rounds is not None and not rounds.met

    def meet(self) -> None:
        if self._rounds:
            self._rounds.meet()

    def count_samples(self, samples: float) -> None:
        if self._rounds:
            self._rounds.count(samples)

    def around_update(
        self, update: Update, apply: Callable[[Sequence[Any]], None]
    ) -> Callable[[Sequence[Any]], None]:
        # A worker that trains alone makes no update of a batch without rows of its own.
        return (
            (lambda grads: backend.active().apply_if_rows(update, grads, apply))
            if self._rounds
            else apply
        )

    def arrays(self, fit: Fit) -> Arrays:
        rounds = fit.find(Rounds)
        return rounds.arrays() if rounds else {}

    def put_back(self, arrays: Mapping[str, Array], fit: Fit) -> None:
        if rounds := fit.find(Rounds):
            rounds.put_back(arrays, fit.steps - fit.epoch_began_at)


FEATURE = LocalSteps
