"""The nodes that an engine holds for an attempt at a job: the wait for them, and their loss."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

from syrtos import settings
from syrtos.engines.registry import engine_of
from syrtos.engines.reservation import (
    EngineAwayError,
    Node,
    NodeRequest,
    NodesLostError,
    Reservation,
)
from syrtos.errors import LaunchError
from syrtos.launch.outcome import End, Outcome
from syrtos.launch.remote.agents import Agents
from syrtos_jobs.placement import Placement
from syrtos_jobs.requests import states
from syrtos_jobs.requests.request import Job
from syrtos_jobs.runner import enter, job_command, processes
from syrtos_jobs.store.job_store import Record, Store

# How long to wait for the replacement of a lost node, in seconds: an autoscaler needs minutes.
_REPLACED_IN = 600.0
_LOOK = 1.0
# Seconds between two requests to an engine that does not answer.
_ANSWERS_IN = 10.0
# How long a node may take to try what its kernel allows, in seconds.
_TRIED_IN = 60.0
# How long to wait, once agents are gone, until the engine says that it has taken the nodes back, in
# seconds.
_WORD_IN = 5.0


class ReservedNodes:
    """The nodes of an attempt, and the agents on them, which serve all of its generations.

    Attributes:
        agents: the agents.
    """

    def __init__(self, reservation: Reservation, agents: Agents, requester: JobRequester) -> None:
        self._reservation, self.agents, self._requester = reservation, agents, requester

    @property
    def command(self) -> str:
        """A prefix of commands: `COMMAND NODE WORDS` runs WORDS on NODE."""
        return self._reservation.command

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables that the command needs."""
        return self._reservation.variables

    def await_nodes(self, job: Job, folders: job_command.Folders) -> job_command.Folders:
        """Waits for a node for each instance, and returns the folders with these nodes.

        Raises:
            NodesLostError: the engine has not replaced a lost node in time.
            LaunchError: the job is to end.
        """
        nodes = self._await_nodes(len(job.hosts))
        # A container may not allow what this machine does. Nodes that follow are taken to be like
        # the first ones.
        isolated = folders.isolated if folders.nodes else self._is_isolated(nodes[0])
        return dataclasses.replace(folders, nodes=nodes, isolated=isolated)

    def _is_isolated(self, node: Node) -> bool:
        """Returns whether instances can have mounts of their own on a node, which is tried there.

        Raises:
            LaunchError: the node does not answer.
        """
        tried = self._try(node)
        if not _is_answer(tried):
            # once more: a connection may be lost
            tried = self._try(node)
        if _is_answer(tried):
            return enter.ISOLATED in tried
        raise LaunchError(
            f"No program can be run on {node.name}: {tried.strip() or 'it has not answered'}."
            " Python and SYRTOS_HOME must be there at the same paths as here."
        )

    def _try(self, node: Node) -> str:
        """Returns what a node says about what its kernel allows, errors too.

        The text is empty if the node does not answer.
        """
        words = (sys.executable, "-P", "-m", "syrtos_jobs.runner.enter", "--try")
        command = [*shlex.split(self.command), node.name, *map(shlex.quote, words)]
        env = settings.environment()
        # without the service's secrets, which some commands take along, and without the mark of the
        # job's processes
        variables = {
            **job_command.base_environment(env, ""),
            "PATH": env.get("PATH", os.defpath),
            **self.variables,
        }
        variables.pop(processes.MARK, None)
        try:
            done = subprocess.run(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_TRIED_IN,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error) * isinstance(error, OSError)
        return done.stdout

    def start_agents(self, commands: Mapping[str, tuple[str, ...]], env: Mapping[str, str]) -> None:
        """Starts agents on nodes that have none, or have lost theirs."""
        # Agents must not have SYRTOS_JOB in their environment: `processes.end` kills every process
        # that has it.
        self.agents.start_lost(commands)
        self.agents.for_hosts(
            commands, {name: value for name, value in env.items() if name != processes.MARK}
        )

    def _await_nodes(self, count: int) -> tuple[Node, ...]:
        deadline = time.monotonic() + _REPLACED_IN
        while len(nodes := self._answering(self._reservation.nodes())) < count:
            if self._requester.is_over():
                raise LaunchError("Gave up waiting for a node: the job was stopped.")
            if time.monotonic() > deadline:
                raise NodesLostError(
                    f"A node was lost, and no other was found in {_REPLACED_IN:.0f} s: the job has"
                    f" {len(nodes)} of the {count} nodes that it needs."
                )
            time.sleep(_LOOK)
        return nodes

    def _answering(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Returns the nodes without those that lost their agent and could not start another."""
        # An engine may not know yet that a node has lost its power.
        lost = self.agents.left_out()
        return tuple(node for node in nodes if node.name not in lost or _is_answer(self._try(node)))

    def confirm_loss(self, outcome: Outcome) -> bool:
        """Returns whether workers have ended because nodes were lost.

        It waits some seconds until the engine says whether it has taken all nodes back, and passes
        that on.
        """
        is_lost = outcome.status is None and outcome.end in (End.LOST, End.NOT_STARTED, End.CRASHED)
        # Workers and agents end before the engine's state shows that it takes their nodes back,
        # often by its signals.
        by_signal = outcome.code in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
        deadline = time.monotonic() + (_WORD_IN if is_lost or by_signal else 0.0)
        while not self._requester.lost.is_set():
            why, again = self._reservation.why_taken_back()
            if why:
                self._requester.note_loss(why, again)
            elif time.monotonic() > deadline or self._requester.lost.wait(_LOOK):
                break
        return is_lost


def _is_answer(tried: str) -> bool:
    return enter.ISOLATED in tried or enter.NOT_ISOLATED in tried


class JobRequester:
    """The attempt, as the `syrtos.engines.reservation.Requester` that an engine reports to.

    Args:
        store: the record of the jobs.
        name: the job.
        is_ending: returns whether the job is to end.
        on_loss: is told when the engine has taken the nodes back, as `Requester.note_loss`.

    Attributes:
        lost: set once the engine has taken the nodes back.
        is_late: whether the job has waited for MaxPendingTimeInSeconds without having begun.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        is_ending: Callable[[], bool],
        on_loss: Callable[[str, bool], None],
    ) -> None:
        self._store, self._name, self._is_ending, self._on_loss = store, name, is_ending, on_loss
        self.lost = threading.Event()
        self.is_late, self._looked = False, 0.0

    def is_over(self) -> bool:
        """Returns whether the job is to end, or has waited for longer than it may."""
        if time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            # a database that is away for a moment does not end the waiting
            with contextlib.suppress(Exception):
                self.is_late = _is_late(self._store.get(self._name))
        return self._is_ending() or self.is_late

    def tell(self, why: str) -> None:
        """Writes down what the job waits for."""
        with contextlib.suppress(Exception):
            self._store.change(self._name, lambda record: _pending(record, why))

    def note_loss(self, why: str, again: bool = True) -> None:
        """Passes on that the engine has taken the nodes back."""
        if not self.lost.is_set():
            self.lost.set()
            self._on_loss(why, again)

    def end_waiting(self) -> None:
        """Writes down that the job has its nodes."""
        self._store.change(
            self._name,
            lambda r: r.with_transition("Starting") if r.state.secondary == "Pending" else None,
        )


def _is_late(record: Record | None) -> bool:
    if record is None or record.begin_until is None or time.time() < record.begin_until:
        return False
    return not any(transition["Status"] == "Downloading" for transition in record.state.transitions)


def _pending(record: Record, why: str) -> Record | None:
    *before, last = record.state.transitions
    if record.state.secondary == "Pending" and last["StatusMessage"] != why:
        # in the place of the reason before: nodes may change their minds for days
        new = (*before, cast("states.Transition", {**last, "StatusMessage": why}))
        return dataclasses.replace(record, state=dataclasses.replace(record.state, transitions=new))
    return record.with_transition("Pending", why) if record.state.secondary == "Starting" else None


@contextlib.contextmanager
def reserved_nodes(
    job: Job, placement: Placement, folder: Path, requester: JobRequester
) -> Iterator[ReservedNodes | None]:
    """Context manager: waits for the nodes of a job's instances, and yields them.

    It yields None if the instances are on this machine.

    Raises:
        SyrtosError: the engine refuses, has no such nodes, or the job has waited for too long.
    """
    if not placement.engine:
        yield None
        return
    wanted = NodeRequest(
        job=job.name,
        count=len(job.hosts),
        workers=job.distribution.per_host,
        gpus=placement.gpus,
        values=placement.values,
        python=sys.executable,
        folder=folder,
    )
    with contextlib.ExitStack() as stack:
        reservation = stack.enter_context(_reserve(placement.engine, wanted, requester))
        requester.end_waiting()
        agents = Agents()
        stack.callback(agents.close)
        yield ReservedNodes(reservation, agents, requester)


@contextlib.contextmanager
def _reserve(engine: str, wanted: NodeRequest, requester: JobRequester) -> Iterator[Reservation]:
    """Context manager: reserves nodes, as soon as the engine answers."""
    with contextlib.ExitStack() as stack:
        while True:
            try:
                reservation = stack.enter_context(engine_of(engine).reserve(wanted, requester))
                break
            except EngineAwayError as error:
                requester.tell(str(error))
                again = time.monotonic() + _ANSWERS_IN
                while time.monotonic() < again:
                    if requester.is_over():
                        raise LaunchError(f"Gave up waiting for nodes: {error}") from error
                    time.sleep(0.2)
        yield reservation
