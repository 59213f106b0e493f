"""Records of which workers wait for which: one that others await, and that awaits none, hangs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

# Seconds of waiting that are worth a line on the terminal.
_WORTH_A_LINE = 30.0
# The name of the watchdog over what the script's own thread waits for.
_MAIN = "main"


class Waits:
    """A record of the workers' waits, which they report once a wait is long.

    Threads may call it concurrently.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # by rank and watchdog: since when it waits, and for which call
        self._calls: dict[tuple[int, str], tuple[float, str]] = {}
        self._beats: dict[int, int] = {}
        self._positions: dict[int, str] = {}
        self._servers: set[int] = set()
        # the begin of the wait that there was a notice of
        self._told: float | None = None

    def serves(self, rank: int) -> None:
        """Notes that ``rank`` is a parameter server.

        A parameter server waits for questions, which says nothing of the others.
        """
        self._servers.add(rank)

    def begin(self, rank: int, watchdog: str, call: str, seconds: float) -> None:
        """Notes that ``rank`` has waited ``seconds`` in ``call``."""
        self._calls[rank, watchdog] = self._now() - seconds, call

    def end(self, rank: int, watchdog: str) -> None:
        """Notes that the wait of ``rank`` is over."""
        self._calls.pop((rank, watchdog), None)

    def alive(self, rank: int, position: str) -> None:
        """Notes a sign of life: Python code runs in ``rank``, whose script is at ``position``."""
        self._beats[rank] = self.beats(rank) + 1
        self._positions[rank] = position

    def beats(self, rank: int) -> int:
        """Returns the number of signs of life that have come from ``rank``."""
        return self._beats.get(rank, 0)

    def position(self, rank: int) -> str:
        """Returns the script's position in ``rank`` at its last sign of life; empty if unknown."""
        return self._positions.get(rank, "")

    def awaited_ranks(self, ranks: Iterable[int]) -> list[int]:
        """Returns workers among ``ranks`` that others wait for, and that do not wait themselves."""
        waiting = {rank for rank, _ in list(self._calls)}
        return [rank for rank in ranks if rank not in waiting | self._servers] if waiting else []

    def all_wait(self, ranks: Iterable[int]) -> bool:
        """Returns whether the script of each of ``ranks`` waits.

        A parameter server counts as waiting at any time.
        """
        waiting = {rank for rank, watchdog in list(self._calls) if watchdog == _MAIN}
        return bool(waiting) and set(ranks) <= waiting | self._servers

    def notice(self, ranks: Iterable[int]) -> str:
        """Returns a sentence on a long wait of some for others, once for each wait; else empty."""
        calls, awaited = dict(self._calls), self.awaited_ranks(ranks)
        since, call = min(calls.values(), default=(math.inf, ""))
        if not awaited or self._told == since or self._now() - since < _WORTH_A_LINE:
            return ""
        self._told = since
        waiting = sorted({rank for rank, _ in calls})
        verb = "has" if len(waiting) == 1 else "have"
        return (
            f"{_ranks(waiting)} {verb} waited {self._now() - since:.0f} s for {_ranks(awaited)}, in"
            f" `{call}`"
        )


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
