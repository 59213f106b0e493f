"""The seeds that a script gives to generators of random numbers before it first trains."""

from __future__ import annotations

import threading
import zlib


class GivenSeeds:
    """The seeds that this worker's script has given, which workers compare as they begin to train.

    Later ones may be a worker's own, e.g. of the records that it reads.

    Attributes:
        by_line: the latest seed of each line of the script, as text, by "FILE:LINE".
    """

    def __init__(self, _session: object) -> None:
        self.by_line: dict[str, str] = {}
        self._is_compared = False

    def note(self, line: str, seed: str) -> None:
        """Notes that a line of the script gives a seed; threads have no common order on workers."""
        if not self._is_compared and threading.current_thread() is threading.main_thread():
            self.by_line[line] = seed

    def digest(self) -> float:
        """Returns a number that is equal on workers whose lines gave equal seeds.

        It is 0 from the second call on.
        """
        if self._is_compared:
            return 0.0
        self._is_compared = True
        return float(zlib.crc32(repr(sorted(self.by_line.items())).encode()))
