"""The interface by which a service has an engine hold nodes for its jobs: one node for each instance of a job.

The service's process on this machine launches the job. The engine only holds the nodes, and starts an agent on each.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Node:
    """A machine that is held for one instance.

    Attributes:
        name: the name by which `Reservation.command` reaches it.
        address: the IP address at which the other nodes reach it.
        cpus: the number of processors that the instance has there.
    """

    name: str
    address: str
    cpus: int


@dataclasses.dataclass(frozen=True)
class WantedNodes:
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


class Holder(Protocol):
    """The process for which nodes are held."""

    def is_over(self) -> bool:
        """Returns whether to give up waiting, as the job is to end."""
        ...

    def tell(self, why: str) -> None:
        """Takes a sentence that says what the job waits for."""
        ...

    def note_loss(self, why: str) -> None:
        """Takes a sentence that says why the nodes are held no longer; called in another thread."""
        ...


class Reservation(ABC):
    """Nodes that an engine holds for a job.

    Attributes:
        command: the words before a node's name and a command that is to run there, as `syrtos run --ssh` has them.
        variables: environment variables that the command needs.
    """

    command: str
    variables: Mapping[str, str]

    @abstractmethod
    def nodes(self) -> tuple[Node, ...]:
        """Returns the nodes of the moment: fewer than the job needs while the engine replaces one that was lost."""

    def why_taken_back(self) -> str:
        """Returns a sentence that says why the engine takes the nodes back, if it does; else an empty text."""
        return ""
