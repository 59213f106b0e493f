"""Workers that agents start, which are real processes of this machine; the hosts have names only."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from syrtos.launch.outcome import End, Outcome
from syrtos.launch.plan import PASSES_SIGNALS_ON, Group, LaunchPlan
from syrtos.launch.remote import agents as launchers_side
from syrtos.launch.remote.agents import Agents
from syrtos.launch.supervise import supervise

PRELUDE = """
import os, signal, sys, time
from syrtos.launch.events import drain, send
rank = int(os.environ["PMI_RANK"])
def say(text): os.write(1, f"{text}\\n".encode())
def finish(): sys.stdout.flush(); send(2, "finished", rank)
def touched(path): open(path, "w").close()
def until(path):
    while not os.path.exists(path): time.sleep(0.01)
def number_of_agent(): return os.getppid()
send(2, "started", rank, host=f"host-{rank}", pid=os.getpid())
"""
AGENT = (sys.executable, "-P", "-m", "syrtos.launch.remote.agent")
RUNS_AGENT = (*AGENT, PASSES_SIGNALS_ON)
LONG = 60.0


@pytest.fixture
def agents() -> Iterator[Agents]:
    found = Agents()
    yield found
    found.close()


def run(
    agents: Agents, code: str, ranks: int = 2, grace: float = 5.0, first: tuple[str, ...] = AGENT
) -> Outcome:
    """A run of so many hosts with a worker each; ``first`` starts the agent of the first host."""
    command = (sys.executable, "-c", PRELUDE + code)
    groups = tuple(Group(command, range(rank, rank + 1), f"host-{rank}") for rank in range(ranks))
    commands = {f"host-{rank}": first if rank == 0 else AGENT for rank in range(ranks)}
    return supervise(
        LaunchPlan(groups, {"UCX_NET_DEVICES": "lo"}, agents=commands),
        os.environ,
        grace,
        agents=agents,
    )


def test_workers_of_all_hosts_are_one_world(
    agents: Agents, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "from mpi4py import MPI\nworld = MPI.COMM_WORLD\nsay(f'{world.rank} {world.allreduce(1)}'); finish()"
    assert run(agents, code, ranks=3).end is End.FINISHED
    assert sorted(capfd.readouterr().out.splitlines()) == ["0 3", "1 3", "2 3"]


def test_output_comes_whole(agents: Agents, capfd: pytest.CaptureFixture[str]) -> None:
    """Also what is no text, and what a worker writes just before its end."""
    run(agents, "os.write(1, b'x' * 500_000 + bytes([0xff, 0xc3])); finish(); os._exit(0)", ranks=1)
    assert capfd.readouterr().out.startswith("x" * 500_000)


def test_agents_serve_several_generations(
    agents: Agents, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert run(agents, "say(number_of_agent()); finish()").end is End.FINISHED
    numbers = capfd.readouterr().out.split()
    assert (len(numbers), len(set(numbers))) == (4, 2)


@pytest.mark.parametrize(
    ("ending", "end", "code"),
    [("os.kill(os.getpid(), 9)", End.CRASHED, 137), ("os._exit(3)", End.LOST, 3)],
)
def test_the_worker_that_ends_first_ends_all(
    agents: Agents, ending: str, end: End, code: int
) -> None:
    began = time.monotonic()
    outcome = run(agents, f"{ending} if rank == 1 else time.sleep(600)")
    assert (outcome.end, outcome.rank, outcome.code) == (end, 1, code)
    assert time.monotonic() - began < LONG


def test_an_abort_of_mpi_has_its_code(agents: Agents) -> None:
    code = "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\nif rank: MPI.COMM_WORLD.Abort(5)\ntime.sleep(600)"
    outcome = run(agents, code)
    assert (outcome.end, outcome.rank, outcome.code) == (End.LOST, 1, 5)


@pytest.fixture
def no_callbacks_of_the_collector() -> Iterator[None]:
    """Python drops an exception that a signal raises in one of them: hypothesis has one in this process."""
    before = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = before


@pytest.mark.usefixtures("no_callbacks_of_the_collector")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_all_and_they_may_save(
    agents: Agents, capfd: pytest.CaptureFixture[str], tmp_path: Path, number: signal.Signals
) -> None:
    code = f"""
def end(*_): raise KeyboardInterrupt
signal.signal(signal.SIGTERM, end)
try:
    touched(f"{tmp_path}/{{rank}}")
    if rank == 0: until("{tmp_path}/1"); os.kill({os.getpid()}, {int(number)})
    time.sleep(600)
except KeyboardInterrupt:
    say("saved")
"""
    outcome = run(agents, code, grace=LONG)
    assert (outcome.end, outcome.code) == (End.STOPPED, 128 + number)
    assert capfd.readouterr().out == "saved\nsaved\n"


def test_an_agent_that_is_killed_is_a_host_that_is_lost(agents: Agents, tmp_path: Path) -> None:
    """Its workers end with it."""
    path = tmp_path / "pid"
    code = f"""
drain(2, 60.0)
touched(f"{tmp_path}/{{rank}}")
if rank:
    open({str(path)!r}, "w").write(str(os.getpid()))
    until("{tmp_path}/0")
    os.kill(number_of_agent(), 9)
time.sleep(600)
"""
    outcome = run(agents, code)
    assert (outcome.end, outcome.rank) == (End.LOST, 1)
    assert ", to which the connection has ended" in str(outcome)
    left = [process for process in psutil.process_iter() if process.pid == int(path.read_text())]
    assert psutil.wait_procs(left, LONG)[1] == []


def test_a_host_that_is_silent_is_lost(
    agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers_side, "_PATIENCE", 3.0)
    path = tmp_path / "pid"
    code = f"""
drain(2, 60.0)
touched(f"{tmp_path}/{{rank}}")
if rank:
    open({str(path)!r}, "w").write(str(number_of_agent()))
    until("{tmp_path}/0")
    os.kill(number_of_agent(), signal.SIGSTOP)
time.sleep(600)
"""
    outcome = run(agents, code)
    os.kill(int(path.read_text()), signal.SIGKILL)
    assert (outcome.end, outcome.rank) == (End.LOST, 1)
    assert "has not been heard of for 3 s" in str(outcome)


def test_what_a_login_shell_prints_is_no_message(
    agents: Agents, capfd: pytest.CaptureFixture[str]
) -> None:
    shell = ("sh", "-c", 'echo "Welcome to host-0"; exec "$0" "$@"', *AGENT)
    assert run(agents, "say(rank); finish()", first=shell).end is End.FINISHED
    assert sorted(capfd.readouterr().out.split()) == ["0", "1"]


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (("sh", "-c", "echo no route >&2; exit 255"), "no route"),
        (("sh", "-c", "echo no python; exit 127"), "no python"),
    ],
)
def test_a_host_without_an_agent(
    agents: Agents, first: tuple[str, ...], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """No worker is started anywhere."""
    outcome = run(agents, "print('started'); finish()", first=first)
    assert (outcome.end, outcome.rank, outcome.why) == (
        End.NOT_STARTED,
        0,
        f"on host-0 could not be started: {why}",
    )
    said = capfd.readouterr()
    assert "started" not in said.out
    assert "syrtos: host-0: no " in said.err


def test_a_command_that_is_not_there(agents: Agents) -> None:
    groups = (Group(("/no/such/program",), range(1), "host-0"),)
    outcome = supervise(
        LaunchPlan(groups, {}, agents={"host-0": AGENT}), os.environ, 5.0, agents=agents
    )
    assert outcome.end is End.NOT_STARTED
    assert "could not be started: [Errno 2] No such file" in outcome.why


def test_an_agents_command_that_is_not_there(agents: Agents) -> None:
    outcome = run(agents, "finish()", first=("/no/such/ssh",))
    assert (outcome.end, outcome.rank) == (End.NOT_STARTED, 0)
    assert "on host-0 could not be started: [Errno 2] No such file" in outcome.why


def test_an_agent_that_never_comes_up(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers_side, "_START", 1.0)
    outcome = run(agents, "finish()", first=("sleep", "1000"))
    assert outcome.why == "on host-0 could not be started: no agent has come up in 1 s"


def test_a_link_that_is_cut_in_the_middle_of_a_message(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends give up: the launcher, and the agent, which can't send any more, with its worker."""
    monkeypatch.setattr(launchers_side, "_PATIENCE", 5.0)
    cut = ("sh", "-c", '"$@" | (dd bs=1 count=300001 status=none; sleep 30)', "sh", *AGENT)
    began = time.monotonic()
    outcome = run(agents, "while True: os.write(1, b'x' * 65536)", ranks=1, first=cut)
    assert (outcome.end, outcome.rank) == (End.LOST, 0)
    assert "has not been heard of for 5 s" in str(outcome)
    assert time.monotonic() - began < LONG


def test_what_is_no_message_is_said(agents: Agents, tmp_path: Path) -> None:
    noisy = (
        "sh",
        "-c",
        f'exec 3<&0; "$@" <&3 & until [ -e {tmp_path}/0 ]; do sleep 0.1; done; echo You have mail; wait',
        "sh",
        *AGENT,
    )
    outcome = run(agents, f"touched('{tmp_path}/0'); time.sleep(600)", ranks=1, first=noisy)
    assert outcome.rank == 0
    assert "something came that is no message: b'You have mail" in str(outcome)


def test_a_message_of_pmi_that_is_none_ends_nobody_else(agents: Agents) -> None:
    code = "os.write(int(os.environ['PMI_FD']), b'cmd=put ' + bytes([10]))\nif rank: os._exit(3)\ntime.sleep(600)"
    outcome = run(agents, code)
    assert (outcome.end, outcome.rank, outcome.code) == (End.LOST, 1, 3)


def test_a_signal_to_an_agent_ends_the_run_while_the_agent_stays(agents: Agents) -> None:
    """It holds the snapshots, which are saved then."""
    code = """
if rank == 0:
    os.kill(number_of_agent(), signal.SIGTERM)
time.sleep(600)
"""
    outcome = run(agents, code, first=RUNS_AGENT)
    assert (outcome.end, outcome.code) == (End.STOPPED, 143)
    assert [agent.host for agent in agents.answering_agents()] == ["host-0", "host-1"]


def test_what_has_started_an_agent_outlives_a_stop_of_all_processes(agents: Agents) -> None:
    """As ssh does, which would take the host with it."""
    code = """
if rank == 0:
    stat = open(f"/proc/{number_of_agent()}/stat").read().rpartition(")")[2].split()
    os.kill(int(stat[1]), signal.SIGTERM)
    drain(2, 60.0)
finish()
"""
    shell = ("sh", "-c", '"$@"; exit $?', "sh", *RUNS_AGENT)
    assert run(agents, code, first=shell).end is End.FINISHED
