"""A thread that nothing ends but `close`."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading

import pytest

from syrtos_jobs.complaints import complain
from syrtos_jobs.polling import PollingThread


class Counting(PollingThread):
    """Does nothing, or raises."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__("counting", 0.001)
        self.error, self.looks = error, threading.Semaphore(0)

    def look(self) -> None:
        self.looks.release()
        if self.error:
            raise self.error

    def report_failure(self, error: Exception) -> None:
        raise BrokenPipeError

    def after_poll(self) -> None:
        if self.error:
            raise ValueError


def await_looks(thread: Counting, count: int) -> None:
    for _ in range(count):
        assert thread.looks.acquire(timeout=30)


def test_a_failure_that_can_not_be_reported_does_not_end_it() -> None:
    thread = Counting(ValueError("once"))
    thread.start()
    await_looks(thread, 5)
    assert "ValueError" in thread.fault()
    thread.error = None
    # a look may have failed meanwhile, and not been awaited
    for _ in range(1000):
        await_looks(thread, 1)
        if not thread.fault():
            break
    assert thread.fault() == ""
    thread.close()
    thread.revive()
    assert thread.deaths == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_died_is_started_again_and_says_so() -> None:
    thread = Counting(SystemExit())
    assert "does not run" in thread.fault()
    thread.start()
    assert thread._thread is not None
    thread._thread.join(30)
    assert "does not run" in thread.fault()
    thread.error = None
    thread.revive()
    await_looks(thread, 4)
    assert (thread.fault(), thread.deaths) == ("", 1)
    thread.close()


@pytest.mark.parametrize("lost", ["closed", "full", "small"])
def test_a_complaint_that_can_not_be_printed(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open("/dev/full" if lost == "full" else os.devnull, os.O_WRONLY)
    if lost == "closed":
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, descriptor)
        os.close(writing)
    stream = io.TextIOWrapper(io.FileIO(descriptor, "w", closefd=False), "ascii")
    monkeypatch.setattr(sys, "stderr", stream)
    complain("é" if lost == "small" else "text")
    monkeypatch.undo()
    os.close(descriptor)
    with contextlib.suppress(OSError):
        stream.close()


def test_a_reader_that_sleeps_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    with io.TextIOWrapper(io.FileIO(writing, "w")) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        complain("text")
        monkeypatch.undo()
    os.close(reading)
