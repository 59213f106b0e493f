"""Chooses the steps of a function before which some rows are computed both ways.

`syrtos.keras.split.first_batch` describes both ways.

The first batch decides, but a term of a loss may begin to count later (a weight that is raised
epoch by epoch, a penalty in each third step), and a first batch may have one row. So later steps
are looked at too: ever more rarely, at the beginnings of epochs, and within a budget of time; and
the step that ends an epoch once, whose batch may have fewer rows than the others.
"""

from __future__ import annotations

import math
import time

from syrtos.comm.communicator import Communicator
from syrtos.comm.world import Session

# Seconds that all checks of a function may take, and the part of the time of its steps beyond that.
_SECONDS, _PART = 2.0, 0.02
# Checks that follow each other step by step while batches have too few rows to show anything.
_WITH_FEW_ROWS = 8
# Epochs after the first one whose first steps are checked, however long that takes.
_EPOCHS = 3


class Epochs:
    """The epochs that have begun in a session.

    Attributes:
        count: their number.
        steps: the steps of each, where it is known.
    """

    def __init__(self, _session: Session) -> None:
        self.count = 0
        self.steps: int | None = None


class Checks:
    """The steps of one function that are checked; the same on all workers.

    Between two checks lie 1, 2, 3, 5, 8 ... steps: Fibonacci's numbers share no divisor for long,
    so that what happens in each n-th step is met.

    Attributes:
        ends_epoch: whether the step that was asked for last is due because it ends an epoch.
    """

    def __init__(self, epochs: Epochs, trains: bool = False) -> None:
        """
        Args:
            epochs: those of this process.
            trains: whether the function makes the steps of epochs.
        """
        self.ends_epoch, self._epochs = False, epochs
        self._trains, self._saw_end = trains, False
        self._epoch_now, self._epoch_began, self._counted = self._epochs.count, 0, 0
        self._steps, self._due = 0, 0
        self._gaps = 1, 1
        self._checks_with_few_rows = 0
        self._over = False
        self._epoch = self._first_epoch = self._epochs.count
        self._spent = self._cost = self._step_seconds = 0.0
        self._last, self._last_steps = time.monotonic(), 0

    def end(self) -> None:
        """Makes no check due any more."""
        self._over = True

    def is_due(self, steps: int = 1) -> bool:
        """Returns whether the next call, which makes so many steps, is to be checked."""
        if self._over:
            return False
        self.ends_epoch = (
            self._is_last(steps) and self._trains and not self._saw_end and self._steps > 0
        )
        if self.ends_epoch:
            return True
        begins = self._epochs.count != self._epoch
        first_ones = self._epochs.count - self._first_epoch <= _EPOCHS
        return self._steps >= self._due or (
            begins and (first_ones or self._spent + self._cost <= self._allowed_seconds())
        )

    def _is_last(self, steps: int) -> bool:
        if self._epoch_now != self._epochs.count:
            self._counted = self._steps - self._epoch_began
            self._epoch_now, self._epoch_began = self._epochs.count, self._steps
        length = self._epochs.steps or self._counted
        return bool(length) and self._steps - self._epoch_began + steps >= length

    def begins_epoch(self) -> bool:
        """Returns whether the step that was asked for last begins an epoch after the first one."""
        return self._trains and not self._over and 0 < self._steps == self._epoch_began

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
        self._saw_end |= self.ends_epoch
        now, steps = time.monotonic(), self._steps - self._last_steps
        since = max(now - self._last - seconds, 0.0) / steps if steps else 0.0
        self._cost = max(comm.agree("seconds of a check", seconds))
        self._step_seconds = max(comm.agree("seconds of a step", since))
        self._spent += self._cost
        self._last, self._last_steps, self._epoch = now, self._steps, self._epochs.count
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
