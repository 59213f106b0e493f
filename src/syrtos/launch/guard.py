"""A worker whose death ends nobody else: a process above it sees how it ends, and says so.

hydra, the launcher of our MPI, kills all processes of a host when one that it started is killed (`hydra_pmi_proxy` of MPICH 5.0.2). With
parameter servers a worker's death costs its own work only, so what hydra starts is this guard, which is never killed with it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from pathlib import Path

from syrtos.launch import events

_PR_SET_PDEATHSIG = 1
_FOLDER = "lost"


def guard(rank: int, run_dir: str) -> None:
    """Returns in a new process that is the worker; this one ends when that has."""
    os.makedirs(os.path.join(run_dir, _FOLDER), exist_ok=True)
    above = os.getpid()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != above:  # it was gone before the kernel knew
            os._exit(1)
        return
    for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the worker
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        Path(run_dir, _FOLDER, str(rank)).touch()
        events.send(2, "lost", rank, code=code)
    os._exit(128 - code if code < 0 else code)


def forget(run_dir: Path) -> None:
    """Nobody has died yet: what an earlier run left in this folder is no news."""
    shutil.rmtree(run_dir / _FOLDER, ignore_errors=True)


def lost(run_dir: str) -> set[int]:
    """The ranks whose workers have died so far."""
    return {int(name) for name in os.listdir(os.path.join(run_dir, _FOLDER))}
