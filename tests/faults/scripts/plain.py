"""A script without Keras: `plain.py ROLE` does on rank 1 (or on all ranks) what the role says."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

RANK = int(os.environ["PMI_RANK"])


def note(name: str) -> None:
    """Leaves a file for the test to see."""
    Path(f"{name}-{RANK}").touch()


def fail() -> None:
    """Only rank 1 fails; rank 0 would go on for long."""
    if RANK == 1:
        raise ValueError("the moon is full")
    time.sleep(60)


def leave_with_3() -> None:
    """Only rank 1 gives up."""
    if RANK == 1:
        sys.exit(3)
    time.sleep(60)


def leave_with_words() -> None:
    """Only rank 1 gives up, and says why."""
    if RANK == 1:
        sys.exit("no such data set")
    time.sleep(60)


def vanish() -> None:
    """Only rank 1 ends, and says nothing."""
    if RANK == 1:
        os._exit(3)
    time.sleep(60)


def sleep() -> None:
    """Both wait for what comes."""
    note("begun")
    time.sleep(60)


def obey() -> None:
    """Both end soon after a signal, and by their own will."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        note(f"signal-{number}")
        time.sleep(0.5)
        note("tidied")
        sys.exit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    sleep()


def ignore() -> None:
    """Both see the signal and go on."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: note(f"signal-{number}"))
    note("begun")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(1)


ROLES: dict[str, Callable[[], None]] = {
    role.__name__: role for role in (fail, leave_with_3, leave_with_words, vanish, sleep, obey, ignore)
}

if __name__ == "__main__":
    ROLES[sys.argv[1]]()
