"""Trials of `syrtos tune`: the first `fit` of a script trains some steps and is measured.

The script is unchanged, and the process ends after the measurement. Each trial does what the script
does before `fit`. The script's callbacks, validation and what follows `fit` are left out, so no
checkpoint is written.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from syrtos import settings
from syrtos.comm import world
from syrtos.errors import ConfigurationError
from syrtos.keras import backend, keras_internals, patching
from syrtos.keras.features import learning_rate
from syrtos.keras.patching import Method, Patch
from syrtos.settings import TuneTrial
from syrtos_tune.trials import rebatching
from syrtos_tune.trials.memory import HostMemory
from syrtos_tune.trials.rate_test import Range
from syrtos_tune.trials.rebatching import ENDLESS, Rebatched

if TYPE_CHECKING:
    from syrtos.keras.protocols import Logs, Model, P, R

# Calls of the training function before those that are measured: they trace, compile and fill
# caches.
_WARM_UP = 3
# A measurement has at least so many calls, and goes on for no longer than so many seconds once it
# has some more.
_LEAST, _ENOUGH, _SECONDS = 3, 5, 20.0
_LEFT_OUT = {
    "validation_data": None,
    "validation_split": 0.0,
    "validation_steps": None,
    "initial_epoch": 0,
    "verbose": 0,
}
BEGAN, RESULT, CALLED = "began.json", "trial.json", "called.json"


def install(trainer: str, optimizer: str = "") -> None:
    """Replaces `fit` of the class ``trainer`` by a trial, and notes what else a script trains with.

    In a run that is no trial nothing happens.
    """
    trial = settings.trial_from(settings.launched_with())
    if trial is None:
        return
    others = [
        Patch(trainer, name, _noting, "A script that never calls `fit` is told what it calls.")
        for name in ("train_on_batch", "evaluate", "predict")
    ]
    noted = (
        [Patch(optimizer, "apply", _noting, "The same for a loop of the script's own.")]
        if optimizer
        else []
    )
    patching.install(
        [
            *others,
            *noted,
            Patch(
                trainer,
                "fit",
                functools.partial(_in_place_of, trial),
                "The trial takes the place of the training.",
            ),
        ]
    )


class _Measure(Protocol):
    """A measurement in the steps of a trial."""

    def begin(self, batch: int, logs: Logs = None) -> None:
        """Begins a batch."""

    def end(self, logs: Logs) -> bool:
        """Ends a batch; returns whether the trial is over."""
        ...

    def facts(self) -> dict[str, object]:
        """Returns what was found."""
        ...


def _in_place_of(trial: TuneTrial, original: Method) -> Method:
    signature = inspect.signature(original)

    def fit(self: Model, *args: object, **kwargs: object) -> None:
        given = dict(signature.bind(self, *args, **kwargs).arguments)
        memory = HostMemory()
        measure: _Measure
        if trial.kind == "batch":
            data = rebatching.rebatch_data(self, given, functools.partial(_rows_of_fit, trial))
            measure, changed = StepTimer(self, trial, data), data.arguments
            # known also where the memory does not suffice
            _write(BEGAN, {"own": data.own * _workers(), "rows": data.rows * _workers()})
        else:
            x: Any = given.get("x")
            measure, changed = (
                Range(self, trial),
                {"x": itertools.cycle(x)} if hasattr(x, "__next__") else {},
            )
        memory.training_begins()
        given |= {name: value for name, value in _LEFT_OUT.items() if name in signature.parameters}
        given |= {**changed, "epochs": ENDLESS, "callbacks": [_watching(self, measure, memory)]}
        original(**given)
        # Here the data has ended before the measurement, which else ends the process.
        _end(measure, memory)

    return fit


def _workers() -> int:
    """Returns how many batches of the script's `fit` make up a global batch."""
    return world.current().world.size if world.explicit() else 1


def _rows_of_fit(trial: TuneTrial, own: int) -> int:
    """Returns the rows of a batch that `fit` is given, where the script's have ``own``."""
    return max(trial.batch // _workers(), 1) if trial.batch else own


def _watching(model: Model, measure: _Measure, memory: HostMemory) -> object:
    def end_step(batch: int, logs: Logs = None) -> None:
        del batch
        if measure.end(logs):
            _end(measure, memory)

    kind = keras_internals.keras_of(model).callbacks.LambdaCallback
    return kind(on_train_batch_begin=measure.begin, on_train_batch_end=end_step)


def _end(measure: _Measure, memory: HostMemory) -> None:
    """Writes down what was found, on all workers, and ends them."""
    session = world.current()
    mine = {
        "rank": session.world.rank,
        **memory.facts(),
        "device": backend.active().device_memory(),
    }
    workers = session.comm.allgather_object(mine)
    _write(RESULT, {**measure.facts(), "workers": workers})
    if session.end is None:
        raise ConfigurationError(
            f"{settings.TRIAL_VARIABLE} is set in a process that `syrtos tune` did not start."
            " Unset it."
        )
    session.end()


def _write(name: str, facts: object) -> None:
    session = world.current()
    if session.world.rank == 0:
        (Path(session.options.run_dir) / name).write_text(json.dumps(facts))


class StepTimer:
    """Measures the time of steps with batches of one size."""

    def __init__(self, model: Model, trial: TuneTrial, data: Rebatched) -> None:
        self._trial, self._data = trial, data
        self._ends: list[float] = []
        self._is_first: list[bool] = []  # of an epoch
        self._each = int(getattr(model, "steps_per_execution", None) or 1)
        self._rate, self._optimizer = (
            learning_rate.rate_of(model),
            getattr(model, "optimizer", None),
        )

    def begin(self, batch: int, logs: Logs = None) -> None:
        """Begins a step, which is measured from end to end, with its input."""
        self._is_first.append(batch == 0)

    def end(self, logs: Logs) -> bool:
        """Notes the end of a call of the training function, which may have made several steps.

        Returns:
            Whether the trial is over.
        """
        # The framework may still compute: a value on the host shows that the step is over.
        for value in (logs or {}).values():
            np.asarray(value)
            break
        self._ends.append(time.perf_counter())
        measured = len(self._seconds())
        if measured < _LEAST:
            return False
        done = measured * self._each >= self._trial.steps
        slow = measured >= _ENOUGH and self._ends[-1] - self._ends[_WARM_UP - 1] > _SECONDS
        return max(world.current().comm.agree("measured enough?", float(done or slow))) > 0

    def _seconds(self) -> list[float]:
        """Returns the seconds of a step, in each call of the training function that is measured.

        Calls that begin an epoch are not measured, unless all do.
        """
        spans = [
            (end - before) / self._each
            for before, end in itertools.pairwise(self._ends[_WARM_UP - 1 :])
        ]
        first = self._is_first[_WARM_UP : len(self._ends)]
        later = [span for span, is_first in zip(spans, first, strict=True) if not is_first]
        return spans if all(first) else later

    def facts(self) -> dict[str, object]:
        """Returns the rows of a global batch, of the script's own one and of an epoch.

        It also returns the seconds of each step.
        """
        inner = getattr(self._optimizer, "inner_optimizer", self._optimizer)
        return {
            "batch": self._data.batch * _workers(),
            "own": self._data.own * _workers(),
            "rows": self._data.rows * _workers(),
            "note": self._data.note,
            "seconds": [round(span, 6) for span in self._seconds()],
            "optimizer": type(inner).__name__,
            "rate": self._rate,
        }


def _noting(original: Callable[P, R]) -> Callable[P, R]:
    """Wraps a method other than `fit`: its first call is noted."""
    called = _note_once(original.__name__)

    def method(*args: P.args, **kwargs: P.kwargs) -> R:
        called()
        return original(*args, **kwargs)

    return method


def _note_once(name: str) -> Callable[[], None]:
    @functools.cache
    def note() -> None:
        session = world.current()
        path = Path(session.options.run_dir) / CALLED
        if session.world.rank == 0:
            known = json.loads(path.read_text()) if path.exists() else []
            path.write_text(json.dumps([*known, name]))

    return note
