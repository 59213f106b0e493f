"""What starts the workers of a run and sees them end: an interface, with a file for each implementation."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import IO


@dataclasses.dataclass(frozen=True)
class Ended:
    """A worker's process that is gone.

    Attributes:
        rank: the worker.
        code: its exit code, negative for a signal; None if it is not known.
    """

    rank: int
    code: int | None = None


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Pipes in which one worker, or a launcher of them, writes."""

    out: IO[bytes]
    err: IO[bytes]


class Engine(ABC):
    """The processes of a run, from their start on.

    Attributes:
        outputs: the pipes: one pair for each worker in rank order, or one that all have in common.
    """

    outputs: list[Outputs]

    @abstractmethod
    def wait(self, seconds: float) -> list[Ended]:
        """Waits at most so long for processes that end, and returns those in order."""

    @abstractmethod
    def poll(self) -> int | None:
        """The exit code of all as one, negative for a signal; None while there are any."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Sends a signal to every worker that runs."""

    @abstractmethod
    def kill(self) -> None:
        """Ends what is left of them, with their children."""
