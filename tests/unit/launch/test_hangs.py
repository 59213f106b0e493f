"""Which of the workers that others wait for hang, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from syrtos.launch import hangs
from syrtos.launch.hangs import Hangs
from syrtos.launch.process_engine import read_vitals
from syrtos.launch.waits import Waits

_SLEEPS = "import time; print(flush=True); time.sleep(600)"
_COMPUTES = "print(flush=True)\nwhile True: pass"
_WRITES = "import time; print(flush=True)\nwhile True:\n  open('/dev/null', 'w').write('x'); time.sleep(0.01)"

Start = Callable[[str], int]


class Clock:
    """Seconds of a test's own, which pass while real processes run for a moment."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[subprocess.Popen[bytes]] = []

    def started(program: str) -> int:
        processes.append(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE))
        pipe = processes[-1].stdout
        assert pipe is not None
        pipe.readline()
        return processes[-1].pid

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def looked_at(
    pid: int, seconds: int, between: Callable[[Waits], None] = lambda waits: None
) -> tuple[list[int], str]:
    """What is found after so many seconds in which rank 0 waits for rank 1, a process of this machine."""
    waits, clock = Waits(), Clock()
    waits.begin(0, "main", "barrier", 10.0)
    looking = Hangs(waits, lambda rank: read_vitals(pid), clock)
    found: list[int] = []
    for _ in range(seconds):
        clock.now += 1.0
        between(waits)
        found = looking.find_hanging([0, 1])
    return found, looking.state(1)


def until_it_ran(pid: int) -> Callable[[Waits], None]:
    """Lets another process compute, or write, for a moment."""
    process = psutil.Process(pid)

    def measured() -> tuple[float, int]:
        used = process.cpu_times()
        return used.user + used.system, process.io_counters().write_count

    def wait(_waits: Waits) -> None:
        used, writes = measured()
        while measured()[0] - used < 0.06 and measured()[1] == writes:
            time.sleep(0.01)

    return wait


def test_a_stopped_process_hangs_after_a_while(start: Start) -> None:
    pid = start(_SLEEPS)
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)
    assert looked_at(pid, 25) == ([], hangs.STOPPED)
    assert looked_at(pid, 32) == ([1], hangs.STOPPED)


def test_a_process_without_signs_of_life_hangs(start: Start) -> None:
    found, state = looked_at(start(_SLEEPS), 32)
    assert found == [1]
    assert state.startswith("without a sign of life: for 31 s")


def test_one_that_gives_signs_of_life_does_not(start: Start) -> None:
    found = looked_at(start(_SLEEPS), 35, lambda waits: waits.alive(1, "train.py:5, in `upload`"))
    assert found == ([], f"{hangs.BUSY}, at train.py:5, in `upload`")


@pytest.mark.parametrize("program", [_COMPUTES, _WRITES])
def test_one_that_computes_or_writes_does_not(start: Start, program: str) -> None:
    pid = start(program)
    assert looked_at(pid, 35, until_it_ran(pid)) == ([], hangs.BUSY)


def test_a_standstill_of_the_launcher_says_nothing(start: Start) -> None:
    waits, clock, pid = Waits(), Clock(), start(_SLEEPS)
    waits.begin(0, "main", "barrier", 10.0)
    looking = Hangs(waits, lambda rank: read_vitals(pid), clock)
    for seconds in (1.0, 3600.0, 1.0):
        clock.now += seconds
        assert looking.find_hanging([0, 1]) == []


def test_workers_that_are_gone() -> None:
    waits, clock = Waits(), Clock()
    waits.begin(0, "main", "barrier", 10.0)
    looking = Hangs(waits, lambda rank: None, clock)
    for _ in range(60):
        clock.now += 1.0
        assert looking.find_hanging([0, 1, 2, 3]) == []
    assert looking.state(1) == looking.state(3) == hangs.BUSY
