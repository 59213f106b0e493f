"""A worker whose death ends no other process: a process above it sees how it ends, and reports it.

hydra, the launcher of our MPI, kills all processes of a host when one that it started is killed (`hydra_pmi_proxy` of MPICH 5.0.2). With
parameter servers a worker's death costs its own work only, so what hydra starts is this guard, which is never killed with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

from syrtos.launch import events, signalling

_FOLDER = "lost"


class Guard:
    """Messages of a guarded worker to the process above it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def finished(self) -> None:
        """The script has come to its end: an exit code of 0 from now on is no death."""
        os.write(self._descriptor, b".")


def guard(rank: int, run_dir: str) -> Guard:
    """Returns in a new process that is the worker; this one ends when that has."""
    above = os.getpid()
    said, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(said)
        signalling.die_with_parent()
        if os.getppid() != above:  # it was gone before the kernel knew
            os._exit(1)
        return Guard(say)
    os.set_blocking(said, False)  # children of the script may hold its other end for as long as they like
    for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the worker
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code or not _has_said(said):
        _note(rank, run_dir)
        events.send(2, "lost", rank, code=code)
        events.drain(2)
        code = code or 1
    os._exit(128 - code if code < 0 else code)


def _has_said(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        return bool(os.read(descriptor, 1))
    return False


def _note(rank: int, run_dir: str) -> None:
    """Leaves word of a death for the parameter servers, which look into the run directory."""
    path = Path(run_dir, _FOLDER, str(rank))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        print(f"syrtos: parameter servers can't learn of rank {rank}'s death: {error}", file=sys.stderr, flush=True)


def forget(run_dir: Path) -> None:
    """Removes the records of deaths of an earlier run in this folder."""
    shutil.rmtree(run_dir / _FOLDER, ignore_errors=True)


def lost(run_dir: str) -> set[int]:
    """The ranks whose workers have died so far, as far as this host can see: none where the run directory is not shared."""
    try:
        return {int(name) for name in os.listdir(os.path.join(run_dir, _FOLDER))}
    except OSError:  # no worker has died, or this host has no such folder
        return set()
