"""Workers, agents, the launcher and a host of a run on two hosts end one after the other: the result is that of a run in which nothing happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import netns
import numpy as np
import pytest

import forking

SYRTOS = Path(sys.executable).with_name("syrtos")
RECOVERING = Path(__file__).parents[1] / "faults" / "scripts" / "recovering.py"
LONG = 300.0


@pytest.fixture
def hosts() -> Iterator[netns.Hosts]:
    with netns.two_hosts_or_skip("1gbit") as pair:
        yield pair


def started(hosts: netns.Hosts, folder: Path, *ends: str) -> subprocess.Popen[str]:
    run = (
        "run",
        "--max-restarts",
        "9",
        *hosts.flags(1),
        "--run-dir",
        folder / "run",
        RECOVERING,
        folder / "out",
        "arrays",
        *ends,
    )
    return hosts.start([str(SYRTOS), *map(str, run)], env={"OMP_NUM_THREADS": "1"})


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code, and what the launcher said."""
    try:
        _, said = process.communicate(timeout=LONG)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, said


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def steps(folder: Path) -> int:
    """How many steps of training have been made, with those that were made again."""
    times = folder / "out" / "times.txt"
    return len(times.read_text().splitlines()) if times.exists() else 0


def left(hosts: netns.Hosts, host: int) -> list[str]:
    return [line for line in hosts.processes(host) if "recovering" in line or "syrtos" in line]


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_result_is_as_if_nothing_had_happened(hosts: netns.Hosts, tmp_path: Path) -> None:
    whole, faulty = tmp_path / "whole", tmp_path / "faulty"
    for folder in (whole, faulty):
        folder.mkdir()
    words = forking.syrtos_run(whole / "run", 2, RECOVERING, whole / "out", "arrays")
    done = forking.run(words, {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr

    run = started(hosts, faulty, "SIGKILL:1:5")
    until(lambda: steps(faulty) > 10)
    hosts.kill(1, "syrtos.launch.remote.agent")
    count = steps(faulty)
    until(lambda: steps(faulty) > count + 4)
    hosts.signal(run, signal.SIGTERM)
    code, said = ended(run)
    assert code == 75, said
    assert "rank 1 on node-b ended first" in said
    assert "was on node-b, to which the connection has ended. Generation 3 goes on from" in said
    assert (left(hosts, 0), left(hosts, 1)) == ([], [])

    resumed = hosts.start(
        [str(SYRTOS), "resume", str(faulty / "run")], env={"OMP_NUM_THREADS": "1"}
    )
    count = steps(faulty)
    until(lambda: steps(faulty) > count + 4)
    os.kill(hosts.first_pids[1], signal.SIGKILL)
    code, said = ended(resumed)
    assert code == 0, said
    assert "syrtos: goes on from" in said
    assert "node-b can't be reached: their workers run on the other hosts" in said
    assert left(hosts, 0) == []
    first, second = (dict(np.load(folder / "out" / "weights.npz")) for folder in (whole, faulty))
    assert [first[name].tobytes() for name in first] == [second[name].tobytes() for name in second]
    for name in ("results.json", "log.csv"):
        assert (whole / "out" / name).read_text() == (faulty / "out" / name).read_text()


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_on_hosts_when_the_launcher_ends(
    hosts: netns.Hosts, tmp_path: Path, number: signal.Signals
) -> None:
    script = tmp_path / "recovering.py"
    script.write_text(
        "import sys, time, syrtos\nsyrtos.init()\nopen(f'{sys.argv[1]}/{syrtos.rank()}', 'w').close()\ntime.sleep(600)\n"
    )
    run = hosts.start(
        [
            str(SYRTOS),
            "run",
            *hosts.flags(1),
            "--run-dir",
            str(tmp_path / "run"),
            str(script),
            str(tmp_path),
        ]
    )
    until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    hosts.signal(run, number)
    ended(run)
    until(lambda: left(hosts, 0) == left(hosts, 1) == [])
