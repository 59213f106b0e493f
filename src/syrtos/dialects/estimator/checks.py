"""Chooses the steps of a function before which some rows are computed both ways.

`syrtos.dialects.estimator.deciding` describes both ways.

The first batch decides, but a term of a loss may begin to count later (a penalty in each third
step), and a first batch may have one row. So later steps are looked at too, ever more rarely and
within a budget of time.
"""

from __future__ import annotations

import math
import time

from syrtos.comm.communicator import Communicator

# Seconds that all checks of a function may take, and the part of the time of its steps beyond that.
_SECONDS, _PART = 2.0, 0.02
# Checks that follow each other step by step while batches have too few rows to show anything.
_WITH_FEW_ROWS = 8


class Checks:
    """The steps of one function that are checked; the same on all workers.

    Between two checks lie 1, 2, 3, 5, 8 ... steps: Fibonacci's numbers share no divisor for long,
    so that what happens in each n-th step is met.
    """

    def __init__(self) -> None:
        self._steps, self._due = 0, 0
        self._gaps = 1, 1
        self._checks_with_few_rows = 0
        self._over = False
        self._spent = self._cost = self._step_seconds = 0.0
        self._last, self._last_steps = time.monotonic(), 0

    def end(self) -> None:
        """Makes no check due any more."""
        self._over = True

    def is_due(self) -> bool:
        """Returns whether the next step is to be checked."""
        return not self._over and self._steps >= self._due

    @property
    def steps(self) -> int:
        """The number of steps that were made."""
        return self._steps

    def count(self, steps: int) -> None:
        """Counts steps that were made."""
        self._steps += steps

    def note_check(self, comm: Communicator, seconds: float, few_rows: bool) -> None:
        """Notes a check. All workers call this together, and agree on the next one.

        Args:
            comm: the workers.
            seconds: that the check took.
            few_rows: it had too few rows to show anything.
        """
        now, steps = time.monotonic(), self._steps - self._last_steps
        since = max(now - self._last - seconds, 0.0) / steps if steps else 0.0
        self._cost = max(comm.agree("seconds of a check", seconds))
        self._step_seconds = max(comm.agree("seconds of a step", since))
        self._spent += self._cost
        self._last, self._last_steps = now, self._steps
        if few_rows and self._checks_with_few_rows < _WITH_FEW_ROWS:
            self._checks_with_few_rows += 1
            self._due = self._steps + 1
            return
        gap, following = self._gaps
        self._gaps = following, gap + following
        if self._spent + self._cost > self._allowed_seconds():
            # Before the first step its time is not known: a check computes it about three times.
            gap = max(gap, math.ceil(self._cost / (_PART * (self._step_seconds or self._cost / 3))))
        self._due = self._steps + gap

    def _allowed_seconds(self) -> float:
        """Seconds that checks may have taken by now, of numbers on which all workers agree."""
        return max(_SECONDS, _PART * self._step_seconds * self._steps)
