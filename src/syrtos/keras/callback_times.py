"""How long each callback of a script takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from syrtos.observe.ledger import Ledger


class Timed(list[Any]):
    """A list of callbacks. Keras calls each between taking it and taking the next, so that time is the callback's."""

    def __init__(self, callbacks: list[Any], ledger: Ledger) -> None:
        super().__init__(callbacks)
        self._ledger = ledger

    def __iter__(self) -> Iterator[Any]:
        for callback in super().__iter__():
            began = time.perf_counter()
            yield callback
            self._ledger.add("callback_seconds", type(callback).__name__, time.perf_counter() - began)
