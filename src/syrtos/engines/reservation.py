"""The interface by which a job of `syrtos serve` reserves an engine's nodes: one for each instance.

The job's runner (`syrtos_jobs.runner.attempt`), a process of the service's machine, launches the
workers and starts an agent on each node by `Reservation.command`. The engine only reserves the
nodes.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from syrtos.errors import LaunchError


@dataclasses.dataclass(frozen=True)
class Node:
    """A machine that is reserved for one instance.

    Attributes:
        name: the name by which `Reservation.command` reaches it.
        address: the IP address at which the other nodes reach it.
        cpus: the number of processors that the engine has given to the instance there.
    """

    name: str
    address: str
    cpus: int


@dataclasses.dataclass(frozen=True)
class NodeRequest:
    """The nodes that a job needs.

    Attributes:
        job: the job's name.
        count: the number of nodes.
        workers: workers on each.
        gpus: GPUs of each; 0: none is asked for.
        values: what `--with NAME=VALUE` has given to the service.
        python: the interpreter that runs agents, at this path on every node.
        folder: the job's folder, at this path on every node.
    """

    job: str
    count: int
    workers: int
    gpus: int
    values: Mapping[str, str]
    python: str
    folder: Path


class Requester(Protocol):
    """The process that asks for nodes."""

    def is_over(self) -> bool:
        """Returns whether the engine should stop waiting: the job was stopped or waits too long."""
        ...

    def tell(self, why: str) -> None:
        """Takes a sentence that says what the job waits for."""
        ...

    def note_loss(self, why: str, again: bool = True) -> None:
        """Is told why the nodes are gone; called in a thread that watches.

        Args:
            why: a sentence.
            again: whether the job is to get others; else somebody has ended it by the engine's own
                means.
        """
        ...


class EngineAwayError(LaunchError):
    """The engine does not answer; it may later."""


class NodesLostError(LaunchError):
    """A node was lost, and the engine has found no other."""


class Reservation(ABC):
    """Nodes that an engine has reserved for a job.

    Attributes:
        command: a prefix of commands: `COMMAND NODE WORDS` runs WORDS on NODE, as with `syrtos run
            --ssh`.
        variables: environment variables that the command needs.
    """

    command: str
    variables: Mapping[str, str]

    @abstractmethod
    def nodes(self) -> tuple[Node, ...]:
        """Returns the nodes reserved now: fewer than the job needs while a lost one is replaced."""

    def why_taken_back(self) -> tuple[str, bool]:
        """Returns why the engine takes the nodes back, and whether the job is to get others.

        Both are as for `Requester.note_loss`. The sentence is empty if the engine does not take the
        nodes back.
        """
        return "", True
