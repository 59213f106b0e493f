"""The time that each callback of a script takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from syrtos.observe.ledger import Ledger


class Timed(list[Any]):
    """A list of callbacks. Keras calls each between taking it and taking the next, so that time is the callback's."""

    def __init__(self, callbacks: list[Any], ledger: Ledger) -> None:
        super().__init__(callbacks)
        self._seconds = ledger.sums("callback_seconds")

    def __iter__(self) -> Iterator[Any]:
        seconds, began = self._seconds, time.perf_counter()
        for callback in super().__iter__():
            yield callback
            now, name = time.perf_counter(), type(callback).__name__
            seconds[name] = seconds.get(name, 0.0) + now - began
            began = now
