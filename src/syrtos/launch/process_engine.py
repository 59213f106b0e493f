"""The interface of engines, which start the workers of a run and see them end.

Each implementation has a file.
"""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO

from syrtos.launch import events


@dataclasses.dataclass(frozen=True)
class ProcessEnd:
    """A worker's process that is gone.

    Attributes:
        rank: the worker.
        code: its exit code, negative for a signal; None if it is not known.
        why: what took the process away where its code is not known, as the end of a sentence about
            it; else empty.
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
    """Facts that the kernel knows about a process (proc(5), ``stat`` and ``io``)."""

    state: str
    used: float
    moved: str


def read_vitals(pid: int) -> Vitals | None:
    """Returns the vitals of a process; None if it is gone."""
    stat = events.stat(pid)
    if not stat or stat[0] in "ZX":
        return None
    used = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    try:
        return Vitals(stat[0], used, Path(f"/proc/{pid}/io").read_text())
    except OSError:
        # The process has just ended, or changes its user.
        return Vitals(stat[0], used, "")


class ProcessEngine(ABC):
    """An interface to the processes of a run, from their start on."""

    outputs: dict[int, Outputs]
    """The pipes, by rank."""

    @abstractmethod
    def wait(self, seconds: float) -> list[ProcessEnd]:
        """Waits until processes end, at most ``seconds``, and returns their ends in order.

        It is to be called often: it also starts what is still to be started.
        """

    @abstractmethod
    def runs(self) -> bool:
        """Returns whether there are processes whose end `wait` has not returned."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Sends a signal to every worker that runs."""

    @abstractmethod
    def kill(self) -> None:
        """Ends the processes that are left, with their children."""

    @abstractmethod
    def vitals(self, rank: int) -> Vitals | None:
        """Returns the vitals of a worker's process; None if it is gone."""

    @abstractmethod
    def note_death(self, rank: int) -> None:
        """Records on every host that ``rank`` has died and the other workers go on without it."""
