"""At any moment time is of one kind: whatever happens, the kinds add up to the whole."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.observe.clock import KINDS, Clock, process_age


class Hands:
    """What a clock goes by in these tests."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands() -> Hands:
    return Hands()


def test_time_before_the_clock_was_made_is_the_start(hands: Hands) -> None:
    clock = Clock(2.5, hands)
    hands.now += 1.0
    clock.become("rest")
    assert clock.top.seconds == {"start": 3.5}


def test_a_span_inside_another_is_counted_once(hands: Hands) -> None:
    clock = Clock(0.0, hands)
    clock.become("callbacks")
    hands.now += 1.0
    with clock.span("checkpoint"):
        hands.now += 2.0
        with clock.span("exchange"):
            hands.now += 4.0
        hands.now += 8.0
    hands.now += 16.0
    clock.tick()
    assert clock.top.seconds == {
        "start": 0.0,
        "callbacks": 17.0,
        "checkpoint": 10.0,
        "exchange": 4.0,
    }
    assert clock.top.kind == "callbacks"


def test_a_span_ends_with_an_error_too(hands: Hands) -> None:
    clock = Clock(0.0, hands)
    clock.become("rest")
    with contextlib.suppress(ValueError), clock.span("input"):
        hands.now += 1.0
        raise ValueError
    assert (clock.top.kind, clock.top.seconds["input"]) == ("rest", 1.0)


def test_what_is_spent_is_taken_from_what_goes_on(hands: Hands) -> None:
    clock = Clock(0.0, hands)
    clock.become("compute")
    hands.now += 10.0
    clock.spend("exchange", 3.0)
    clock.spend("wait", 2.0)
    clock.tick()
    assert clock.top.seconds == {"start": 0.0, "compute": 5.0, "exchange": 3.0, "wait": 2.0}


def test_no_more_is_spent_than_there_was(hands: Hands) -> None:
    clock = Clock(0.0, hands)
    clock.become("compute")
    hands.now += 2.0
    clock.spend("exchange", 1.5)
    clock.spend("input", 1.5)
    clock.tick()
    assert clock.top.seconds == {"start": 0.0, "compute": 0.0, "exchange": 1.5, "input": 0.5}


def test_what_is_left_since_a_mark(hands: Hands) -> None:
    clock = Clock(now=hands)
    clock.begin("train", "compute", is_step=True)
    hands.now += 2.0
    clock.mark()
    hands.now += 3.0
    clock.spend("exchange", 1.0)
    clock.spend_since_mark("update")
    clock.spend_since_mark("update")  # once
    clock.tick()
    assert clock.top.seconds == {"exchange": 1.0, "update": 2.0, "compute": 2.0}


def test_a_mark_is_of_its_step(hands: Hands) -> None:
    clock = Clock(now=hands)
    clock.begin("train", "compute", is_step=True)
    clock.mark()
    hands.now += 1.0
    part = clock.begin("test", "compute", is_step=True)
    hands.now += 1.0
    clock.spend_since_mark("update")
    assert part is not None
    clock.end(part)
    assert part.seconds == {"compute": 1.0}


def test_the_start_is_not_divided(hands: Hands) -> None:
    clock = Clock(1.0, hands)
    clock.spend("wait", 1.0)
    clock.tick()
    assert clock.top.seconds == {"start": 1.0}


def test_a_part_stands_still_while_another_lies_on_it(hands: Hands) -> None:
    clock = Clock(0.0, hands)
    clock.become("rest")
    outer = clock.begin("fit", "build")
    assert outer
    hands.now += 1.0
    inner = clock.begin("test", "rest")
    assert inner
    hands.now += 2.0
    clock.end(inner)
    hands.now += 4.0
    clock.end(outer)
    assert (inner.wall, outer.wall, clock.top.wall) == (2.0, 5.0, 0.0)


def test_what_was_left_open_belongs_to_what_is_around_it(hands: Hands) -> None:
    clock = Clock(0.0, hands)
    outer = clock.begin("fit", "build")
    assert outer
    clock.begin("train", "compute", is_step=True)
    hands.now += 3.0
    clock.top.samples = 8.0
    clock.end(outer)
    assert (outer.seconds["compute"], outer.samples) == (3.0, 8.0)
    assert len(clock.parts) == 1


def test_other_threads_open_nothing_and_spend(hands: Hands) -> None:
    clock = Clock(0.0, hands)
    clock.begin("fit", "build")

    def elsewhere() -> None:
        assert clock.begin("test", "rest") is None
        clock.become("callbacks")
        with clock.span("checkpoint"):
            hands.now += 2.0
        clock.spend("exchange", 1.0)

    other = threading.Thread(target=elsewhere)
    other.start()
    other.join()
    clock.tick()
    assert clock.top.seconds == {"build": 1.0, "exchange": 1.0}


def test_a_fit_in_another_thread_has_the_clock_while_it_lasts(hands: Hands) -> None:
    clock = Clock(0.0, hands)
    clock.become("rest")

    def elsewhere() -> None:
        part = clock.begin("fit", "build")
        assert part
        hands.now += 2.0
        clock.end(part)
        assert part.seconds == {"build": 2.0}

    other = threading.Thread(target=elsewhere)
    other.start()
    other.join()
    assert clock.is_mine


def test_a_part_of_another_thread_survives_the_end_of_a_span_here(hands: Hands) -> None:
    """E.g. a thread that predicts while the main thread's own loop trains."""
    clock = Clock(0.0, hands)
    clock.become("rest")
    begun, over, ended = threading.Event(), threading.Event(), threading.Event()

    def elsewhere() -> None:
        part = clock.begin("predict", "build")
        assert part
        begun.set()
        over.wait(30)
        clock.end(part)
        ended.set()

    with clock.span("compute"):
        threading.Thread(target=elsewhere, daemon=True).start()
        assert begun.wait(30)
    over.set()
    assert ended.wait(30)
    assert ([part.phase for part in clock.parts], clock.top.kind, clock.is_mine) == (
        ["script"],
        "rest",
        True,
    )


def test_the_scripts_part_is_never_closed(hands: Hands) -> None:
    clock = Clock(0.0, hands)
    outer, inner = clock.begin("fit", "build"), clock.begin("test", "build")
    assert outer
    assert inner
    clock.end(outer)
    clock.end(inner)
    assert [part.phase for part in clock.parts] == ["script"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["become", "spend", "begin", "end", "pass"]),
            st.sampled_from(KINDS),
            st.floats(0, 50),
        )
    )
)
def test_whatever_happens_adds_up(events: list[tuple[str, str, float]]) -> None:
    hands = Hands()
    clock = Clock(0.0, hands)
    began, closed = hands.now, []
    for event, kind, seconds in events:
        if event == "become":
            clock.become(kind)  # pyright: ignore[reportArgumentType]
        elif event == "spend":
            clock.spend(kind, seconds)  # pyright: ignore[reportArgumentType]
        elif event == "begin":
            clock.begin("fit", kind)  # pyright: ignore[reportArgumentType]
        elif event == "end" and len(clock.parts) > 1:
            closed.append(clock.top)
            clock.end(clock.top)
        elif event == "pass":
            hands.now += seconds
    clock.tick()
    parts = [*closed, *clock.parts]
    assert sum(part.wall for part in parts) == pytest.approx(hands.now - began)
    assert sum(sum(part.seconds.values()) for part in parts) == pytest.approx(hands.now - began)
    assert all(value >= -1e-9 for part in parts for value in part.seconds.values())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_process_knows_when_it_was_started() -> None:
    command = "import time; time.sleep(0.5); from syrtos.observe.clock import process_age; print(process_age())"
    before = time.monotonic()
    said = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    assert 0.5 <= float(said.stdout) <= time.monotonic() - before + 1 / os.sysconf("SC_CLK_TCK")
    assert process_age() > 0
