"""Snapshots in the memory of agents, which are real processes of this machine."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from syrtos.launch.remote.agents import Agent, Agents
from syrtos.launch.snapshots import AgentSnapshots, LocalSnapshots

AGENT = (sys.executable, "-P", "-m", "syrtos.launch.remote.agent")
HOSTS = ("a", "b")
LONG = 60.0


@pytest.fixture
def agents() -> Iterator[Agents]:
    found = Agents()
    found.for_hosts(dict.fromkeys(HOSTS, AGENT), os.environ)
    until(lambda: not found.left_out())
    yield found
    found.close()


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def commit(snapshots: AgentSnapshots, agent: Agent, number: int, *parts: bytes) -> None:
    """As the workers of a host do."""
    snapshots.facts_for_writers(len(parts))
    for part, data in enumerate(parts):
        snapshots._put(agent, part, number, len(parts), data)


def read(snapshots: AgentSnapshots | LocalSnapshots, number: int) -> list[bytes]:
    return [b"".join(snapshots.pieces(part, number)) for part in range(snapshots.parts(number))]


def test_nothing_is_committed_at_the_beginning(agents: Agents) -> None:
    snapshots = AgentSnapshots(agents)
    assert (snapshots.committed_number(), snapshots.settle()) == (0, 0)
    agents.before_start(agents.answering_agents())
    assert snapshots.committed_number() == 0


def test_the_newest_that_all_hosts_have_is_kept(agents: Agents) -> None:
    """A host ended while its workers wrote: nothing need be sent."""
    snapshots, (a, b) = AgentSnapshots(agents), agents.answering_agents()
    for agent in (a, b):
        commit(snapshots, agent, 1, b"first", agent.host.encode())
    commit(snapshots, a, 2, b"second", b"a")
    assert snapshots.committed_number() == 2
    assert snapshots.settle() == snapshots.committed_number() == 1
    assert read(snapshots, 1)[0] == b"first"
    with pytest.raises(BlockingIOError):
        snapshots.parts(2)


def test_a_host_that_comes_back_gets_what_another_has(agents: Agents) -> None:
    snapshots, (a, b) = AgentSnapshots(agents), agents.answering_agents()
    data = os.urandom(40 << 20)  # more than is sent at a time
    for agent in (a, b):
        commit(snapshots, agent, 7, data, b"")
    child = next(p for p in psutil.Process().children() if p.pid == b._process.pid)  # type: ignore[union-attr]
    child.send_signal(signal.SIGKILL)
    until(lambda: bool(b.lost))
    assert snapshots.settle() == 7
    assert agents.left_out() == {"b"}
    agents.start_lost()
    until(lambda: not agents.left_out())
    agents.before_start(agents.answering_agents())
    assert [
        sorted(numbers) for _, numbers in snapshots._whole_snapshots(agents.answering_agents())
    ] == [[7], [7]]
    (back,) = [agent for agent in agents.answering_agents() if agent.host == "b"]
    snapshots._held = back, 7, back.ask("hold", room=2, number=7)["lengths"]
    assert read(snapshots, 7) == [data, b""]


def test_what_was_loaded_is_sent_before_the_start(agents: Agents) -> None:
    snapshots = AgentSnapshots(agents)
    for part, data in enumerate((b"one", b"two")):
        snapshots.write(part, 5, 2, data)
    assert (snapshots.committed_number(), read(snapshots, 5)) == (5, [b"one", b"two"])
    agents.before_start(agents.answering_agents())
    assert [numbers for _, numbers in snapshots._whole_snapshots(agents.answering_agents())] == [
        {5},
        {5},
    ]
    assert read(snapshots, 5) == [b"one", b"two"]


def test_the_memory_of_this_machine() -> None:
    snapshots = LocalSnapshots()
    snapshots.write(0, 1, 2, b"one")
    snapshots.write(1, 1, 2, b"two")
    snapshots.write(0, 2, 2, b"of a worker that was faster")
    assert snapshots.settle() == 1
    assert read(snapshots, 1) == [b"one", b"two"]
    snapshots.close()
