"""Workers that wait for others: the one that hangs is not the one that reports it, but the one that does not wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

# Seconds of waiting that are worth a line on the terminal.
_WORTH_A_LINE = 30.0
# The name of the watchdog over what the script's own thread waits for.
_MAIN = "main"


class Waits:
    """What workers have said of their waits, which they do once a wait is long. Threads may call it concurrently."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._calls: dict[tuple[int, str], str] = {}  # by rank and watchdog
        self._beats: dict[int, int] = {}
        self._positions: dict[int, str] = {}
        self._servers: set[int] = set()
        self._since = 0.0
        self._told = False

    def serves(self, rank: int) -> None:
        """``rank`` is a parameter server: it waits for questions, and nothing is known of the others by that."""
        self._servers.add(rank)

    def begin(self, rank: int, watchdog: str, call: str, seconds: float) -> None:
        """``rank`` has waited ``seconds`` in ``call``."""
        if not self._calls:
            self._since, self._told = self._now() - seconds, False
        self._calls[rank, watchdog] = call

    def end(self, rank: int, watchdog: str) -> None:
        """Its wait is over."""
        self._calls.pop((rank, watchdog), None)

    def alive(self, rank: int, position: str) -> None:
        """Python code runs in ``rank``, whose script is at ``position``."""
        self._beats[rank] = self.beats(rank) + 1
        self._positions[rank] = position

    def beats(self, rank: int) -> int:
        """How many signs of life have come from ``rank``."""
        return self._beats.get(rank, 0)

    def position(self, rank: int) -> str:
        """Where its script was when the last one came; empty if that is not known."""
        return self._positions.get(rank, "")

    def awaited(self, ranks: Iterable[int]) -> list[int]:
        """Those of ``ranks`` that others wait for, and that do not wait themselves."""
        waiting = {rank for rank, _ in list(self._calls)}
        return [rank for rank in ranks if rank not in waiting | self._servers] if waiting else []

    def all_wait(self, ranks: Iterable[int]) -> bool:
        """Whether the script of each of these waits; a parameter server does so at any time."""
        waiting = {rank for rank, watchdog in list(self._calls) if watchdog == _MAIN}
        return bool(waiting) and set(ranks) <= waiting | self._servers

    def notice(self, ranks: Iterable[int]) -> str:
        """Once in a long wait of some for others: a sentence about it; else an empty text."""
        calls = dict(self._calls)
        awaited = self.awaited(ranks)
        if not calls or not awaited or self._told or self._now() - self._since < _WORTH_A_LINE:
            return ""
        self._told = True
        waiting, call = _ranks(sorted({rank for rank, _ in calls})), next(iter(calls.values()))
        return f"{waiting} waits for {_ranks(awaited)} since {self._now() - self._since:.0f} s, in `{call}`"


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"each of the ranks {', '.join(map(str, ranks))}"
