"""What starts the workers of a run and sees them end: an interface, with a file for each implementation."""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO

from syrtos.launch import events


@dataclasses.dataclass(frozen=True)
class Ended:
    """A worker's process that is gone.

    Attributes:
        rank: the worker.
        code: its exit code, negative for a signal; None if it is not known.
        why: what took it away where it is not known, as the end of a sentence about it; else empty.
    """

    rank: int
    code: int | None = None
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Pipes in which one worker writes."""

    out: IO[bytes]
    err: IO[bytes]


@dataclasses.dataclass(frozen=True)
class Vitals:
    """What the kernel knows of a process (proc(5), ``stat`` and ``io``).

    Attributes:
        state: its letter: R, S, D, T, t, ...
        used: seconds of processor time so far.
        moved: counts of what it has read and written so far, as a text.
    """

    state: str
    used: float
    moved: str


def look(pid: int) -> Vitals | None:
    """What a process does; None if it is gone."""
    stat = events.stat(pid)
    if not stat or stat[0] in "ZX":
        return None
    used = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    try:
        return Vitals(stat[0], used, Path(f"/proc/{pid}/io").read_text())
    except OSError:  # it has just ended, or changes its user
        return Vitals(stat[0], used, "")


class Engine(ABC):
    """The processes of a run, from their start on."""

    outputs: dict[int, Outputs]
    """The pipes, by rank."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Ended]:
        """Waits at most so long for processes that end, and returns those in order. To be called often: it starts what is still to be started."""

    @abstractmethod
    def runs(self) -> bool:
        """Whether there are processes whose end `wait` has not returned."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Sends a signal to every worker that runs."""

    @abstractmethod
    def kill(self) -> None:
        """Ends what is left of them, with their children."""

    @abstractmethod
    def look(self, rank: int) -> Vitals | None:
        """What a worker's process does; None if it is gone."""

    @abstractmethod
    def note_death(self, rank: int) -> None:
        """Leaves word of a death that the others survive on every host."""
