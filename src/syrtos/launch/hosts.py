"""Workers on several hosts, or in a job's instances: an agent on each host starts them (see `syrtos.launch.agent`)."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from typing import IO

from syrtos.launch import output, pmi, signalling
from syrtos.launch.agent import EVERY, GREETING
from syrtos.launch.channel import Channel, Message, as_bytes
from syrtos.launch.engine import Ended, Engine, Outputs, Vitals
from syrtos.launch.plan import Plan, forwarded

# Seconds in which an agent must come up, and seconds without a sign of life after which its host is lost.
_START, _PATIENCE = 60.0, 10.0
# Seconds that an agent may take to end its workers.
_LONGEST_KILL = 8.0
_LONGEST_GREETING = 1 << 20


class Agent:
    """The launcher's side of one agent.

    Attributes:
        ready: whether it has answered.
        lost: why it is gone, as the end of a sentence about a worker of it; empty while it is there.
    """

    def __init__(self, host: str, channel: Channel | None, command: tuple[str, ...], env: Mapping[str, str]) -> None:
        """``channel`` is to an agent that runs; else ``command`` starts one, which ends with the thread that calls this."""
        self.host = host
        self.ready, self.lost = False, ""
        self._take: Callable[[Message], None] = lambda message: None
        self._process = None if channel else self._started(command, env)
        self._channel = channel
        threading.Thread(target=self._hear, name=f"syrtos-agent-{host}", daemon=True).start()

    def _started(self, command: tuple[str, ...], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is ours to pass on
            preexec_fn=signalling.die_with_parent,
        )
        assert process.stderr is not None
        threading.Thread(target=self._complain, args=(process.stderr,), daemon=True).start()
        return process

    def _complain(self, said: Iterable[bytes]) -> None:
        """Passes on what ssh says, or an agent of an error of its own."""
        for line in filter(None, (line.decode(errors="replace").rstrip() for line in said)):
            output.say(f"{self.host}: {line}".removeprefix(": "))

    # -- messages --------------------------------------------------------------------------------

    def listen(self, take: Callable[[Message], None]) -> None:
        """From now on ``take`` gets what the agent tells."""
        self._take = take

    def send(self, kind: str, **facts: object) -> None:
        """Tells the agent something; nothing if it is gone."""
        if self._channel is None or self.lost:
            return
        try:
            self._channel.send(kind, **facts)
        except OSError:
            return  # the thread that hears it knows

    def _hear(self) -> None:
        try:
            if self._channel is None:
                self._channel = self._greeted()
            patience = _START
            while message := self._channel.receive(patience):
                self.ready, patience = True, _PATIENCE
                self._take(message)
            self.lost = f"was on a host that has not been heard of for {patience:.0f} s"
        except (OSError, EOFError):
            self.lost = "was on a host to which the connection has ended" if self.ready else "could not be started"
        self._take({"is": "lost"})

    def _greeted(self) -> Channel:
        """Behind what a login shell prints first.

        Raises:
            EOFError: no agent has come up.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        before = b""
        while not before.endswith(GREETING):
            byte = process.stdout.read(1)
            before += byte
            if not byte or len(before) > _LONGEST_GREETING:
                self._complain(before.splitlines())
                raise EOFError
        reads, writes = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
        process.stdin.close()
        return Channel(Connection(reads, writable=False), Connection(writes, readable=False))

    def close(self) -> None:
        """Ends the agent, if it was started here."""
        if self._process is None:
            return
        self.send("over")
        try:
            self._process.wait(_LONGEST_KILL if self.ready and not self.lost else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Agents:
    """The agents of a run, which serve all of its generations."""

    def __init__(self, channels: Mapping[str, Channel] | None = None) -> None:
        """``channels``: to agents that run already, by host."""
        self._channels = channels or {}
        self._agents: dict[str, Agent] = {}

    def of(self, commands: Mapping[str, tuple[str, ...]], env: Mapping[str, str]) -> dict[str, Agent]:
        """An agent for each host: the one that is there, or a new one that its command starts."""
        for host, command in commands.items():
            if host not in self._agents or self._agents[host].lost:
                self._agents[host] = Agent(host, self._channels.get(host), command, env)
        return {host: self._agents[host] for host in commands}

    def close(self) -> None:
        """Ends them."""
        for agent in self._agents.values():
            agent.close()
        self._agents.clear()


class Hosts(Engine):
    """The processes of a plan that has agents."""

    def __init__(self, plan: Plan, env: Mapping[str, str], agents: Agents) -> None:
        """Asks the agents, which start the processes when all of them have come up.

        Args:
            plan: what is executed.
            env: the environment of agents that are started here. Workers of other hosts get the forwarded part of it.
            agents: of the run.
        """
        self._plan, self._env = plan, env
        self._answers, self._answering = pmi.KeyValues(plan.nodes), threading.Lock()
        self._news: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._host_of = {rank: group.host for group in plan.groups for rank in group.ranks}
        self._left = set(self._host_of)
        self._started, self._began, self._beat = False, time.monotonic(), 0.0
        self._killed: dict[str, threading.Event] = {}
        self._vitals: dict[int, Vitals] = {}
        self._writers: dict[tuple[int, int], IO[bytes]] = {}
        self.outputs = {rank: self._pipes(rank) for rank in self._host_of}
        self._agents = agents.of(plan.agents, env)
        for agent in self._agents.values():
            agent.listen(lambda message, agent=agent: self._take(agent, message))

    def _pipes(self, rank: int) -> Outputs:
        ends = [os.pipe() for _ in range(2)]
        for stream, (_, write) in enumerate(ends, 1):
            self._writers[rank, stream] = os.fdopen(write, "wb", buffering=0)
        out, err = (os.fdopen(read, "rb") for read, _ in ends)
        return Outputs(out, err)

    def wait(self, seconds: float) -> list[Ended]:
        self._keep_up()
        ended: list[Ended] = []
        try:
            ended.append(self._news.get(timeout=seconds))
            while not self._news.empty():
                ended.append(self._news.get())
        except queue.Empty:
            pass
        return [each for each in ended if self._is_news(each.rank)]

    def _is_news(self, rank: int) -> bool:
        """Whether its end was not known yet: a host that is lost may have told of it before."""
        known = rank not in self._left
        self._left.discard(rank)
        return not known

    def _keep_up(self) -> None:
        """Starts the workers when all agents are there, and tells agents that this process lives."""
        lost = [agent for agent in self._agents.values() if agent.lost]
        if not self._started and lost:
            for rank in self._host_of:
                self._news.put(Ended(rank, None, lost[0].lost))
        elif not self._started and all(agent.ready for agent in self._agents.values()):
            self._start()
        if time.monotonic() - self._beat > EVERY:
            self._beat = time.monotonic()
            for agent in self._agents.values():
                agent.send("pulse")

    def _start(self) -> None:
        self._started = True
        for host, agent in self._agents.items():
            groups = [group for group in self._plan.groups if group.host == host]
            agent.send(
                "start",
                groups=[{"command": g.command, "ranks": [g.ranks.start, g.ranks.stop]} for g in groups],
                nodes=self._plan.nodes,
                environment=forwarded(self._env) | dict(self._plan.environment) if host else dict(self._env),
                folder=os.getcwd(),
                whole=not self._plan.reports,
            )

    # -- messages --------------------------------------------------------------------------------

    def _take(self, agent: Agent, message: Message) -> None:
        """Called by the thread that hears the agent."""
        kind, rank = message["is"], int(message.get("rank", -1))
        if kind == "output":
            self._writers[rank, message["stream"]].write(as_bytes(message["text"]))
        elif kind == "pmi":
            self._answer(rank, message["line"])
        elif kind == "ended":
            self._news.put(Ended(rank, message["code"]))
        elif kind == "alive":
            self._vitals |= {int(rank): Vitals(*vitals) for rank, vitals in message["vitals"].items()}
        elif kind == "killed" and agent.host in self._killed:
            self._killed[agent.host].set()
        elif kind in ("lost", "failed"):
            self._lose(agent, f"could not be started: {message['text']}" if kind == "failed" else agent.lost)

    def _answer(self, rank: int, line: str) -> None:
        with self._answering:
            for each, text in self._answers.answer(rank, line):
                self._agents[self._host_of[each]].send("pmi", rank=each, text=text)

    def _lose(self, agent: Agent, why: str) -> None:
        for rank, host in self._host_of.items():
            if host == agent.host:
                self._news.put(Ended(rank, None, why))
        if agent.host in self._killed:
            self._killed[agent.host].set()

    # -- the processes ---------------------------------------------------------------------------

    def runs(self) -> bool:
        return bool(self._left)

    def signal(self, number: int) -> None:
        for agent in self._agents.values():
            agent.send("signal", number=number)
        if not self._started:  # there is nobody who could take it
            for rank in self._host_of:
                self._news.put(Ended(rank, -number))

    def kill(self) -> None:
        if self._started:
            asked = [agent for agent in self._agents.values() if not agent.lost]
            self._killed = {agent.host: threading.Event() for agent in asked}
            for agent in asked:
                agent.send("kill")
            deadline = time.monotonic() + _LONGEST_KILL
            for agent in asked:
                if not self._killed[agent.host].wait(max(deadline - time.monotonic(), 0.0)) and not agent.lost:
                    output.say(
                        f"the agent on {agent.host or 'this machine'} has not ended its workers in {_LONGEST_KILL:.0f} s"
                    )
        for agent in self._agents.values():
            agent.listen(lambda message: None)
        for writer in self._writers.values():
            writer.close()

    def look(self, rank: int) -> Vitals | None:
        return self._vitals.get(rank) if rank in self._left else None

    def note_death(self, rank: int) -> None:
        for agent in self._agents.values():
            agent.send("death", rank=rank)
