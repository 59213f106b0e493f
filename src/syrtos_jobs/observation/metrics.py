"""Metrics in a job's output, and the progress of its training."""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import regex

from syrtos.errors import ConfigurationError
from syrtos.report.ledger_lines import is_sound_epoch, sound_lines
from syrtos.run_dir import RunDir

Pattern = regex.Pattern[str]
Match = regex.Match[str]

_LONGEST_SEARCH = 0.5  # processor seconds for one line
_MOST_LATE = 3  # lines
# Processor seconds that all expressions together may take beyond their part of the time: so late
# the end of a job may become known. Then each of them has the last number for a line.
_BUDGET, _PART, _SHORT_SEARCH = 3.0, 0.1, 0.01


class EpochFacts(TypedDict, total=False):
    """The record that rank 0 writes about an epoch of `fit`.

    Attributes:
        epoch: the number of epochs that are done.
        epochs: the number of epochs that `fit` was asked for.
        step, steps_per_epoch: the same of steps.
        time: seconds since 1970.
        logs: Keras's logs at the epoch's end.
    """

    epoch: int
    epochs: int
    step: int
    steps_per_epoch: int
    time: float
    logs: dict[str, float]


class Metrics:
    """The last value of each metric that a request defines by a regular expression with one group.

    Attributes:
        values: the value and its time, by name. A metric whose last value is NaN or infinite has
            none.
        diverged: the names of the metrics whose last value is NaN or infinite.

    Raises:
        ConfigurationError: an expression can't be read.
    """

    def __init__(self, definitions: Sequence[Mapping[str, str]]) -> None:
        self.values: dict[str, list[float]] = {}
        self.diverged: set[str] = set()
        self._patterns = [
            (definition["Name"], _compile_metric(definition)) for definition in definitions
        ]
        self._late = collections.Counter[str]()
        self._budget, self._refilled = _BUDGET, time.monotonic()
        self._complaints: list[str] = []

    def take(self, lines: Sequence[str]) -> list[tuple[str, float]]:
        """Looks for metrics in lines of output, and returns the names and finite values found."""
        taken: list[tuple[str, float]] = []
        for line in lines:
            for name, pattern in [*self._patterns]:
                found = self._search(name, pattern, line)
                value = _number(found[1]) if found and pattern.groups else None
                if value is not None and self._keep(name, value):
                    taken.append((name, value))
        return taken

    def new_complaints(self) -> list[str]:
        """Returns what is wrong with the expressions, each complaint once."""
        found, self._complaints = self._complaints, []
        return found

    def _search(self, name: str, pattern: Pattern, line: str) -> Match | None:
        limit, began = self._limit(), time.thread_time()
        # `re` may take years for a line, and no other thread runs meanwhile
        try:
            return pattern.search(line, timeout=limit, concurrent=True)
        except TimeoutError:
            self._late[name] += 1
        finally:
            self._budget -= time.thread_time() - began
        if self._late[name] == _MOST_LATE:
            self._patterns = [one for one in self._patterns if one[0] != name]
            self._complaints.append(
                f"the metric {name} is not looked for any more: its regular expression"
                f" {pattern.pattern!r} has taken more than {limit:g} s for each of {_MOST_LATE}"
                f" lines{', and all of them together too long' * (limit < _LONGEST_SEARCH)}. Nested repetitions cause that; write it without them."
            )
        return None

    def _limit(self) -> float:
        """Returns the processor seconds that the next search may take."""
        now = time.monotonic()
        self._budget = min(self._budget + _PART * (now - self._refilled), _BUDGET)
        self._refilled = now
        return _LONGEST_SEARCH if self._budget > 0 else _SHORT_SEARCH

    def _keep(self, name: str, value: float) -> bool:
        # neither JSON nor SageMaker's API has such numbers, and the last finite one would look like
        # the present one
        if not math.isfinite(value):
            self.diverged.add(name)
            self.values.pop(name, None)
            return False
        self.diverged.discard(name)
        self.values[name] = [value, time.time()]
        return True


def _compile_metric(definition: Mapping[str, str]) -> Pattern:
    try:
        return regex.compile(definition["Regex"])
    except (regex.error, OverflowError, RecursionError) as error:
        raise ConfigurationError(
            f"The metric {definition['Name']} has the regular expression {definition['Regex']!r},"
            f" which can't be read: {error}."
        ) from error


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def epochs(run_dir: Path) -> list[EpochFacts]:
    """Returns the records that rank 0 has written about each epoch (`RunDir.epochs`).

    Lines that a script has damaged are left out.
    """
    found: Iterator[Any] = sound_lines(RunDir(run_dir).epochs, [], is_sound_epoch)
    return list(found)


_PACE = 10  # epochs that an estimate looks back at


def seconds_left(found: Sequence[Mapping[str, Any]], began: float, now: float) -> float | None:
    """Estimates the seconds that a `fit` still takes, at its last epochs' pace; None if unknown.

    Args:
        found: the epochs of one run directory.
        began: the time when training began; the pace of a first epoch includes all since then.
        now: the present time.
    """
    last = found[-1] if found else {}
    epochs, epoch = last.get("epochs"), last.get("epoch", 0)
    if not epochs or epoch >= epochs or "time" not in last:
        return None
    times = [last["time"]]
    for k, one in enumerate(reversed(found[:-1][-_PACE:])):
        if one.get("epoch") != epoch - k - 1 or "time" not in one:
            # from here on they are of another `fit`
            break
        times.append(one["time"])
    pace = (times[0] - times[-1]) / (len(times) - 1) if len(times) > 1 else times[0] - began
    return max(0.0, pace * (epochs - epoch) - min(now - times[0], pace))


def headline(
    found: Sequence[Mapping[str, Any]], final: Mapping[str, Sequence[float]]
) -> tuple[str, float] | None:
    """Returns the name and value that say most about a job: its last loss, else its first metric.

    Args:
        found: records of epochs.
        final: `Metrics.values`.
    """
    logs = found[-1].get("logs") if found else None
    values = logs or {name: pair[0] for name, pair in final.items()}
    name = "loss" if "loss" in values else next(iter(values), None)
    return None if name is None else (name, values[name])


def progress(found: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Returns the progress of the last epoch as ``ProgressInfo`` of DescribeTrainingJob."""
    if not found:
        return {}
    last = found[-1]
    facts = {
        "TotalStepCountPerEpoch": last.get("steps_per_epoch"),
        "CurrentStep": last.get("step"),
        "CurrentEpoch": last.get("epoch"),
        "MaxEpoch": last.get("epochs"),
    }
    return {name: int(value) for name, value in facts.items() if value is not None}


def logged_objective(
    epochs: Sequence[EpochFacts], name: str, diverged: Collection[str]
) -> dict[str, list[float]]:
    """Returns a tuning job's objective from Keras's logs: its last value and the value's time.

    It is meant for scripts that do not print the objective.

    Args:
        epochs: the ends of epochs.
        name: the objective.
        diverged: metrics that are no numbers any more.
    """
    last: EpochFacts = epochs[-1] if epochs else {}
    value = (last.get("logs") or {}).get(name)
    if not isinstance(value, int | float) or not math.isfinite(value):
        return {}
    if name in diverged or "time" not in last:
        return {}
    return {name: [float(value), last["time"]]}
