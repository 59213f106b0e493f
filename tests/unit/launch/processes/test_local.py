"""Workers that this process starts itself: how each ends is known, and what it says before its end."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from syrtos.launch.outcome import End, Outcome
from syrtos.launch.plan import Group, LaunchPlan
from syrtos.launch.processes.local import Local, start
from syrtos.launch.supervise import supervise

PRELUDE = """
import os, signal, sys, time
from pathlib import Path
from syrtos.launch.events import report_start, send
rank = int(os.environ["PMI_RANK"])
def finish(): send(2, "finished", rank)
def until(path):
    while not Path(path).exists(): time.sleep(0.01)
"""
# Seconds that a busy machine may need for what takes a moment.
LONG = 60.0


def run(code: str, ranks: int = 3, grace: float = 5.0) -> Outcome:
    command = (sys.executable, "-c", PRELUDE + "report_start(2, rank)\n" + code)
    return supervise(LaunchPlan((Group(command, range(ranks)),), {}), os.environ, grace)


def test_it_is_a_success_when_all_have_said_so(capfd: pytest.CaptureFixture[str]) -> None:
    # In one piece: an unbuffered `print` writes the end of its line by itself, and another worker may come between.
    outcome = run("sys.stdout.write(f'from {rank}\\n'); finish()")
    assert (outcome.end, outcome.code, sorted(outcome.workers)) == (End.FINISHED, 0, [0, 1, 2])
    assert sorted(capfd.readouterr().out.splitlines()) == ["from 0", "from 1", "from 2"]


@pytest.mark.parametrize(
    ("ending", "end", "status", "code"),
    [
        ("os.kill(os.getpid(), 9)", End.CRASHED, -9, 137),
        ("os.abort()", End.CRASHED, -6, 134),
        ("os._exit(3)", End.LOST, 3, 3),
    ],
)
def test_the_worker_that_ends_first_is_known_with_its_end(
    ending: str, end: End, status: int, code: int
) -> None:
    began = time.monotonic()
    outcome = run(f"{ending} if rank == 1 else time.sleep(600)")
    assert (outcome.end, outcome.rank, outcome.status, outcome.code) == (end, 1, status, code)
    assert time.monotonic() - began < LONG


def test_the_others_have_their_grace_after_an_end_with_code_0(
    capfd: pytest.CaptureFixture[str],
) -> None:
    outcome = run("if rank: time.sleep(1.5), print('uploaded')", ranks=2, grace=LONG)
    assert (outcome.end, outcome.rank, outcome.status, outcome.code) == (End.LOST, 0, 0, 1)
    assert capfd.readouterr().out == "uploaded\n"


def test_no_shared_memory_is_left_of_workers_that_die_while_mpi_begins(tmp_path: Path) -> None:
    """MPI has named its segments, and a worker removes the names only when all have mapped them."""
    outcome = run(
        "from mpi4py import MPI\n"
        f"Path({str(tmp_path)!r}, str(rank)).write_text(Path('/proc/self/maps').read_text())\n"
        f"until(Path({str(tmp_path)!r}, str(1 - rank)))\n"
        "os.kill(os.getpid(), 9)",
        ranks=2,
    )
    assert outcome.end is End.CRASHED
    maps = "".join((tmp_path / str(rank)).read_text() for rank in range(2))
    names = {word for word in maps.split() if "/mpich_shm_" in word}
    assert names, "MPI has none"
    assert not any(Path(name).exists() for name in names)


def test_others_that_wait_for_it_have_no_grace() -> None:
    began = time.monotonic()
    waits = (
        "send(2, 'waiting', rank, call='allreduce', seconds=2.0, watchdog='main'); time.sleep(600)"
    )
    outcome = run(f"if rank: sys.exit(0)\n{waits}", ranks=2, grace=600)
    assert (outcome.end, outcome.rank, outcome.status) == (End.LOST, 1, 0)
    assert time.monotonic() - began < LONG


def test_what_others_report_after_a_call_of_exit_is_not_the_reason(tmp_path: Path) -> None:
    """They see a broken connection before they are ended."""
    left = tmp_path / "left"
    outcome = run(
        f"if rank: send(2, 'left', rank, code=0); Path('{left}').touch(); os._exit(0)\n"
        f"until('{left}'); time.sleep(2); send(2, 'failed', rank, text='ConnectionError', code=1); sys.exit(1)",
        ranks=2,
        grace=LONG,
    )
    assert (outcome.end, outcome.rank, outcome.status) == (End.LOST, 1, 0)


def test_a_reported_failure_goes_before_the_end_of_its_process() -> None:
    outcome = run(
        "if rank == 2: send(2, 'failed', rank, text='ValueError: x', code=7); sys.exit(7)\ntime.sleep(600)"
    )
    assert (outcome.end, outcome.rank, outcome.code) == (End.FAILED, 2, 7)


def test_a_worker_is_heard_to_its_last_word(capfd: pytest.CaptureFixture[str]) -> None:
    """It may write much just before its end, and say only then that it has finished."""
    outcome = run("os.write(1, b'x' * 50_000); finish(); os._exit(0)", ranks=2)
    assert outcome.end is End.FINISHED
    assert capfd.readouterr().out == "x" * 100_000


def test_a_crash_after_the_scripts_end_is_no_success() -> None:
    outcome = run("finish()\nif rank == 1: os.kill(os.getpid(), 11)", ranks=2)
    assert (outcome.end, outcome.rank, outcome.code) == (End.CRASHED, 1, 139)


def test_a_command_that_is_no_worker_has_not_started() -> None:
    group = Group((sys.executable, "-c", "raise SystemExit(4)"), range(2))
    assert supervise(LaunchPlan((group,), {}), os.environ, 1).end is End.NOT_STARTED


def test_a_command_that_is_not_there_leaves_nothing() -> None:
    with pytest.raises(FileNotFoundError):
        Local([Group(("/no/such/program",), range(2))], [0, 0], os.environ, start)


def test_children_of_a_worker_end_with_it(tmp_path: Path) -> None:
    run(
        f"import subprocess; child = subprocess.Popen(['sleep', '600']); Path({str(tmp_path)!r}, str(rank)).write_text(str(child.pid))\n"
        f"until({str(tmp_path / '0')!r}), until({str(tmp_path / '1')!r})\n"
        "os.kill(os.getpid(), 9) if rank else time.sleep(600)",
        ranks=2,
    )
    deadline = time.monotonic() + LONG
    for rank in "01":
        child = Path("/proc", (tmp_path / rank).read_text())
        while child.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not child.exists()


def test_a_signal_reaches_all_and_they_may_save(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outcome = run(
        "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'saved\\n'), sys.exit(0)))\n"
        f"Path({str(tmp_path)!r}, str(rank)).touch()\n"
        f"if rank == 0: until({str(tmp_path / '1')!r}); os.kill(os.getppid(), signal.SIGTERM)\n"
        "time.sleep(600)",
        ranks=2,
        grace=LONG,
    )
    assert (outcome.end, outcome.code) == (End.STOPPED, 128 + signal.SIGTERM)
    assert capfd.readouterr().out == "saved\nsaved\n"


ABORTING = """
from mpi4py import MPI
from syrtos.launch.processes.leftovers import mapped_segments, remove
report_start(2, rank)
MPI.COMM_WORLD.Barrier()
if rank == 0: remove(mapped_segments())
MPI.COMM_WORLD.Barrier()
if rank == 1: MPI.COMM_WORLD.Abort({})
time.sleep(600)
"""


@pytest.mark.parametrize(("given", "code"), [(5, 5), (256, 1), (0, 1), (-1, 255)])
def test_an_abort_of_mpi_has_its_code_and_is_no_success(given: int, code: int) -> None:
    command = (sys.executable, "-c", PRELUDE + ABORTING.format(given))
    outcome = supervise(
        LaunchPlan((Group(command, range(2)),), {"UCX_NET_DEVICES": "lo"}), os.environ, 5
    )
    assert (outcome.end, outcome.rank, outcome.status, outcome.code) == (End.LOST, 1, code, code)
