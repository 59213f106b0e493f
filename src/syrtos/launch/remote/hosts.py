"""Workers on several hosts, or in a job's instances: an agent on each host starts them."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Mapping
from typing import IO

from syrtos.launch import limits
from syrtos.launch.plan import LaunchPlan, forwarded_variables
from syrtos.launch.process_engine import Outputs, ProcessEnd, ProcessEngine, Vitals
from syrtos.launch.processes import pmi
from syrtos.launch.remote.agents import LONGEST_KILL, Agent, Agents
from syrtos.launch.remote.channel import Message
from syrtos.launch.remote.records import MissingRecords
from syrtos.settings import options_from


class Hosts(ProcessEngine):
    """An engine for the processes of a plan that has agents."""

    def __init__(self, plan: LaunchPlan, env: Mapping[str, str], agents: Agents) -> None:
        """Asks the agents, which start the processes when all of them have come up.

        Args:
            plan: the plan that is executed.
            env: the environment of agents that are started here. Workers of other hosts get the
                forwarded part of it.
            agents: the agents of the run.
        """
        self._plan, self._env = plan, env
        self._answers, self._answering = pmi.KeyValues(plan.nodes), threading.Lock()
        self._news: queue.SimpleQueue[ProcessEnd] = queue.SimpleQueue()
        self._host_of = {rank: group.host for group in plan.groups for rank in group.ranks}
        self._left = set(self._host_of)
        self._started = False
        self._killed: dict[str, threading.Event] = {}
        self._records = MissingRecords(plan)
        self._vitals: dict[int, Vitals] = {}
        self._writers: dict[tuple[int, int], IO[bytes]] = {}
        limits.allow_descriptors(4 * len(self._host_of) + 256)
        self.outputs = {rank: self._pipes(rank) for rank in self._host_of}
        self._all_agents = agents
        self._agents = agents.for_hosts(plan.agents, env)
        for agent in self._agents.values():
            agent.listen(lambda message, agent=agent: self._take(agent, message))

    def _pipes(self, rank: int) -> Outputs:
        ends = [os.pipe() for _ in range(2)]
        for stream, (_, write) in enumerate(ends, 1):
            self._writers[rank, stream] = os.fdopen(write, "wb", buffering=0)
        out, err = (os.fdopen(read, "rb") for read, _ in ends)
        return Outputs(out, err)

    def wait(self, seconds: float) -> list[ProcessEnd]:
        self._keep_up()
        ended: list[ProcessEnd] = []
        try:
            ended.append(self._news.get(timeout=seconds))
            while not self._news.empty():
                ended.append(self._news.get())
        except queue.Empty:
            pass
        return [each for each in ended if self._is_news(each.rank)]

    def _is_news(self, rank: int) -> bool:
        """Returns whether the end of ``rank`` was not known yet.

        A host that is lost may have told of it before.
        """
        known = rank not in self._left
        self._left.discard(rank)
        return not known

    def _keep_up(self) -> None:
        """Starts the workers when all agents are there."""
        lost = next((agent for agent in self._agents.values() if agent.lost), None)
        if not self._started and lost is not None:
            the_reason_first = sorted(
                self._host_of, key=lambda rank: self._host_of[rank] != lost.host
            )
            for rank in the_reason_first:
                self._news.put(
                    ProcessEnd(rank, None, f"on {lost.host or 'this machine'} {lost.lost}")
                )
        elif not self._started and all(agent.ready for agent in self._agents.values()):
            self._start()

    def _start(self) -> None:
        self._started = True
        try:
            self._all_agents.before_start(list(self._agents.values()))
        except OSError as error:
            for rank in self._host_of:
                self._news.put(ProcessEnd(rank, None, f"was not started: {error}"))
            return
        for host, agent in self._agents.items():
            groups = [group for group in self._plan.groups if group.host == host]
            agent.send(
                "start",
                groups=[
                    {"command": g.command, "ranks": [g.ranks.start, g.ranks.stop]} for g in groups
                ],
                nodes=self._plan.nodes,
                environment=(
                    forwarded_variables(self._env, self._plan.forward)
                    | dict(self._plan.environment)
                    if host
                    else dict(self._env)
                ),
                folder=os.getcwd(),
                whole=not self._plan.reports,
            )

    # -- messages --------------------------------------------------------------------------------

    def _take(self, agent: Agent, message: Message) -> None:
        """Deals with a message of an agent; called by the thread that hears the agent."""
        kind, rank = message["is"], int(message.get("rank", -1))
        if kind == "output":
            # it is closed: the generation is over
            with contextlib.suppress(ValueError):
                self._writers[rank, message["stream"]].write(message["data"])
        elif kind == "pmi":
            self._answer(rank, message["line"])
        elif kind == "ended":
            self._news.put(ProcessEnd(rank, message["code"]))
        elif kind == "alive":
            self._vitals |= {
                int(rank): Vitals(*vitals) for rank, vitals in message["vitals"].items()
            }
        elif kind == "killed" and agent.host in self._killed:
            self._killed[agent.host].set()
        elif kind == "record":
            self._records.take(agent.host, message)
        elif kind == "recorded":
            self._records.all_are_here(agent.host)
        elif kind in ("lost", "failed"):
            self._lose(
                agent,
                f"could not be started: {message['text']}" if kind == "failed" else agent.lost,
            )

    def _answer(self, rank: int, line: str) -> None:
        with self._answering:
            for each, text in self._answers.answer(rank, line):
                self._agents[self._host_of[each]].send("pmi", rank=each, text=text)

    def _lose(self, agent: Agent, why: str) -> None:
        for rank, host in self._host_of.items():
            # Before the start `wait` sees by itself that an agent is lost.
            if host == agent.host and self._started:
                self._news.put(ProcessEnd(rank, None, why))
        if agent.host in self._killed:
            self._killed[agent.host].set()
        self._records.all_are_here(agent.host)

    # -- the processes ---------------------------------------------------------------------------

    def runs(self) -> bool:
        return bool(self._left)

    def signal(self, number: int) -> None:
        for agent in self._agents.values():
            agent.send("signal", number=number)
        # No worker is there that could take the signal.
        if not self._started:
            for rank in self._host_of:
                self._news.put(ProcessEnd(rank, -number))

    def kill(self) -> None:
        if self._started:
            asked = [agent for agent in self._agents.values() if not agent.lost]
            self._killed = {agent.host: threading.Event() for agent in asked}
            run_dir = options_from(self._plan.environment).run_dir
            for agent in asked:
                agent.send("kill", run_dir=run_dir, ledgers=self._records.missing(agent.host))
                # The agent was lost while it was asked: nothing will come from it.
                if agent.lost:
                    self._records.all_are_here(agent.host)
            deadline = time.monotonic() + LONGEST_KILL
            for agent in asked:
                if not self._killed[agent.host].wait(max(deadline - time.monotonic(), 0.0)):
                    agent.give_up(
                        f"was on {agent.host or 'this machine'}, whose agent has not ended its"
                        f" workers in {LONGEST_KILL:.0f} s"
                    )
            self._records.wait()
        for agent in self._agents.values():
            agent.listen(lambda message: None)
        for writer in self._writers.values():
            writer.close()

    def vitals(self, rank: int) -> Vitals | None:
        return self._vitals.get(rank) if rank in self._left else None

    def note_death(self, rank: int) -> None:
        for agent in self._agents.values():
            agent.send("death", rank=rank)
