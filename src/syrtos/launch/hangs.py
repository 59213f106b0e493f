"""Workers that others wait for: what they are doing, and whether anything runs in them at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from syrtos.launch.process_engine import Vitals
from syrtos.launch.waits import Waits
from syrtos.launch.worker import heartbeat

# Seconds after which a worker hangs that others wait for and in which nothing runs.
_HANGS = 29.0
# Seconds between two looks. A longer time between them is this process's own standstill, and says
# nothing of the workers.
_LOOK = 1.0
# Part of one processor that threads of libraries use which wait for nothing in particular.
_IDLE = 0.05

STOPPED, TRACED = "stopped, by SIGSTOP or the like", "stopped by a debugger"
BUSY = "busy with something else, or hangs"


class Hangs:
    """A detector of hangs among the workers that others wait for.

    A worker that waits in Python, for a server or for a lock, gives signs of life; one that
    computes uses the processor, one that saves a model reads or writes: only ``--timeout`` ends
    these. A worker that does nothing of it is stopped, or code outside of Python waits for ever and
    holds the GIL.
    """

    def __init__(
        self,
        waits: Waits,
        look: Callable[[int], Vitals | None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins to look; ``look`` returns the vitals of a worker's process, None if it is gone."""
        self._waits, self._look, self._now = waits, look, now
        self._looked = now()
        # by rank: processor time at the last look, and what else changes in one that runs
        self._seen: dict[int, tuple[float, object]] = {}
        # by rank: seconds since something was seen to run in it
        self._still: dict[int, float] = {}

    def find_hanging(self, ranks: Iterable[int]) -> list[int]:
        """Returns the workers among ``ranks`` that hang.

        The method is to be called often; it looks once a second.
        """
        passed = self._now() - self._looked
        if passed < _LOOK:
            return []
        self._looked += passed
        awaited = self._waits.awaited_ranks(ranks)
        self._still = {rank: self._stands_still(rank, passed) for rank in awaited}
        return [rank for rank, seconds in self._still.items() if seconds >= _HANGS]

    def state(self, rank: int) -> str:
        """Describes what a worker that others wait for does, as the end of "it is ..."."""
        vitals = self._look(rank)
        if vitals is not None and (stopped := {"T": STOPPED, "t": TRACED}.get(vitals.state)):
            return stopped
        still, position = self._still.get(rank, 0.0), self._waits.position(rank)
        if still > 2 * heartbeat.EVERY:
            return (
                f"without a sign of life: for {still:.0f} s it has run no Python code, and has used"
                " neither processor nor disk"
            )
        return f"{BUSY}, at {position}" if position else BUSY

    def may_go_on(self, rank: int) -> bool:
        """Returns whether ``rank`` is or may be busy, so that only ``--timeout`` ends the run."""
        return self.state(rank).startswith((BUSY, TRACED))

    def _stands_still(self, rank: int, passed: float) -> float:
        """Returns the seconds for which nothing has run in a worker."""
        vitals = self._look(rank)
        # the worker is gone, stopped by a debugger (t), or waits for a disk (D): it does not hang
        if vitals is None or vitals.state in "tD":
            return 0.0
        others = (self._waits.beats(rank), vitals.moved)
        before, others_before = self._seen.get(rank, (0.0, None))
        self._seen[rank] = (vitals.used, others)
        runs = vitals.used - before > _IDLE * passed or others != others_before
        # A longer time between two looks is this process's own standstill, and says nothing of the
        # worker.
        return 0.0 if runs else self._still.get(rank, 0.0) + min(passed, 2 * _LOOK)
