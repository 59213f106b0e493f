"""Exchanges beside the worker: in order, and over before it exchanges itself."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from syrtos.comm.background import Background


class _Held:
    pass


def test_they_are_made_in_order_and_are_over_when_it_has_settled() -> None:
    background, made = Background(), []
    background.settle()  # there is nothing to wait for

    def exchange(number: int) -> int:
        time.sleep(0.01)
        made.append(number)
        background.settle()  # an exchange may be several
        return number

    futures = [background.submit(lambda number=number: exchange(number)) for number in range(5)]
    assert background.ahead
    background.settle()
    assert not background.ahead
    assert made == [future.result(0) for future in futures] == list(range(5))


def test_after_an_error_nothing_is_made_until_it_has_settled() -> None:
    background, go = Background(), threading.Event()

    def fails() -> None:
        go.wait()
        raise ValueError("no")

    futures = [background.submit(fails), background.submit(lambda: None)]
    go.set()
    background.settle()
    for future in futures:
        with pytest.raises(ValueError, match="no"):
            future.result(0)
    assert background.submit(lambda: 1).result(60) == 1


def test_nothing_is_kept_of_what_is_over() -> None:
    background, held = Background(), _Held()
    seen = weakref.ref(held)
    background.submit(lambda held=held: held)
    background.settle()
    del held
    gc.collect()
    assert seen() is None
