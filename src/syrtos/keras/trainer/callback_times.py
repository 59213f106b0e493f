"""The time that each callback of a script takes."""

from __future__ import annotations

import time
from collections.abc import Iterator

from syrtos.observe.ledger import Ledger


class Timed(list[object]):
    """A list of callbacks that adds up the time of each."""

    def __init__(self, callbacks: list[object], ledger: Ledger) -> None:
        super().__init__(callbacks)
        self._seconds = ledger.sums("callback_seconds")

    def __iter__(self) -> Iterator[object]:
        seconds, began = self._seconds, time.perf_counter()
        for callback in super().__iter__():
            # Keras calls a callback between taking it and taking the next, so that time is the
            # callback's.
            yield callback
            now, name = time.perf_counter(), type(callback).__name__
            seconds[name] = seconds.get(name, 0.0) + now - began
            began = now
