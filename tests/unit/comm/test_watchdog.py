"""Waits end, and are counted."""

from __future__ import annotations

import time

import pytest

from syrtos.comm import watchdog
from syrtos.comm.watchdog import Watchdog
from syrtos.errors import StalledError


def after(seconds: float) -> float:
    return time.perf_counter() + seconds


def test_what_is_done_already_costs_no_waiting() -> None:
    dog = Watchdog()
    dog.wait(lambda: True, "barrier", 0)
    assert dog.waited == 0.0


def test_waiting_is_counted() -> None:
    dog = Watchdog(timeout=60.0)
    started = time.perf_counter()
    for _ in range(2):
        end = after(0.05)
        dog.wait(lambda end=end: time.perf_counter() > end, "barrier", 0)
    assert 0.09 < dog.waited <= time.perf_counter() - started


def test_a_stall_is_an_error_in_time() -> None:
    dog = Watchdog(timeout=0.1)
    started = time.perf_counter()
    with pytest.raises(StalledError, match=r"rank 3 .* in `allreduce sum`.*--timeout SECONDS"):
        dog.wait(lambda: False, "allreduce sum", 3)
    assert 0.1 <= time.perf_counter() - started < 30.0
    assert dog.waited >= 0.1


def test_a_standstill_of_this_process_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_STANDSTILL", 0.2)
    looks: list[int] = []

    def done() -> bool:
        looks.append(0)
        # as a process that was stopped by Ctrl-Z and goes on
        time.sleep(0.5 if len(looks) == 2 else 0.0)
        return len(looks) > 4

    Watchdog(timeout=0.4).wait(done, "barrier", 0)


def test_a_stall_is_told_before_it_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    with pytest.raises(StalledError) as caught:
        Watchdog(0.01, told.append).wait(lambda: False, "barrier", 0)
    assert told == [str(caught.value)]
    assert told[0] in capsys.readouterr().err


def test_an_error_while_waiting_comes_through_and_ends_the_wait() -> None:
    answers = iter([False])
    dog = Watchdog()
    with pytest.raises(StopIteration):
        dog.wait(lambda: next(answers), "barrier", 0)

    assert dog.waited > 0.0


def test_a_long_wait_leaves_the_core_to_others() -> None:
    end, dog = after(0.3), Watchdog()
    busy = time.thread_time()
    dog.wait(lambda: time.perf_counter() > end, "barrier", 0)
    assert time.thread_time() - busy < 0.15


def test_a_stall_of_another_watchdog_is_told_too() -> None:
    told: list[str] = []
    first = Watchdog()
    second = Watchdog(0.01, first.tell)
    first.on_stall = told.append  # set later, as by the worker
    with pytest.raises(StalledError):
        second.wait(lambda: False, "read", 1)
    assert len(told) == 1


def test_a_long_wait_is_told_when_it_becomes_one_and_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, bool, str]] = []
    dog = Watchdog(timeout=30)
    dog.on_long_wait = lambda call, seconds, name: told.append((call, seconds > 0.1, name))
    monkeypatch.setattr(watchdog, "_LONG", 0.1)
    for each, name in ((dog, "main"), (dog.another("input"), "input")):
        end = after(0.2)
        each.wait(lambda end=end: time.perf_counter() > end, "barrier", 0)
        assert told == [("barrier", True, name), ("", False, name)]
        told.clear()
    dog.timeout = float("inf")  # at the end of a script
    end = after(0.2)
    dog.wait(lambda: time.perf_counter() > end, "barrier", 0)
    assert not told


def test_a_wait_that_is_given_up_is_not_over() -> None:
    told: list[str] = []
    dog = Watchdog(timeout=0.1)
    dog.on_long_wait = lambda call, seconds, name: told.append(call)
    with pytest.raises(StalledError):
        dog.wait(lambda: False, "barrier", 0)
    assert told == ["barrier"]


def test_all_watchdogs_of_a_process_wait_without_limit() -> None:
    dog = Watchdog(timeout=0.1)
    other = dog.another("input")
    dog.wait_without_limit()
    for each in (dog, other):
        end = after(0.3)
        each.wait(lambda end=end: time.perf_counter() > end, "barrier", 0)
