"""Processes that a worker's script starts, and programs that would take the worker's place."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from syrtos.errors import ConfigurationError

if TYPE_CHECKING:
    from syrtos.comm.world import Session

# Seconds of processor time of children from which they are named: to import a framework takes more.
_WORTH_NAMING = 1.0


def refuse_to_be_replaced(is_worker: Callable[[], bool]) -> None:
    """Lets `os.execv` and its like fail where ``is_worker``, and not in children of the process."""

    def replacing(execute: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def execute_in_child(path: Any, *arguments: Any, **named: Any) -> NoReturn:
            if is_worker():
                raise ConfigurationError(
                    f"`os.exec` of {path!s} would replace this worker by a program that"
                    " trains alone, on all the data. Set what it is for before the run"
                    " (`NAME=value syrtos run ...`), or start a program by `subprocess.run`."
                )
            execute(path, *arguments, **named)

        return execute_in_child

    # those with other arguments call one of these two
    os.execv, os.execve = replacing(os.execv), replacing(os.execve)


def describe_training_in_children(session: Session) -> str:
    """Returns a sentence if children of this worker may have trained in its place; else nothing.

    Each worker's child would have trained alone, on all the data.
    """
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    worked = session.ledger.trained or session.ledger.fits or session.rank_aware
    if session.world.size == 1 or worked or seconds < _WORTH_NAMING:
        return ""
    return (
        "no worker has trained, and processes that the script has started computed for"
        f" {seconds:.0f} s on rank 0: if they train, each trains alone, on all the data. Train"
        " in the script's own process (`model.fit` outside of `multiprocessing` and `subprocess`)."
    )


def end_children() -> None:
    """Ends processes that the script has started, such as readers of its data."""
    # Only here: it takes 20 ms to import.
    import psutil

    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()


def lingering_threads() -> list[str]:
    """Returns the names of threads of the script that keep this process from ending."""
    first = threading.main_thread()
    return [t.name for t in threading.enumerate() if not t.daemon and t is not first]
