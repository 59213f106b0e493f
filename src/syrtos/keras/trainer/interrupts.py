"""Handles Ctrl-C inside `fit`: all workers take it at the same step.

So all of them do what the script does then.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from syrtos.comm import world
from syrtos.comm.world import Session

if TYPE_CHECKING:
    from syrtos.keras.protocols import P, R


class _Interrupt:
    """A SIGINT that this worker has got."""

    def __init__(self, _session: Session) -> None:
        self.is_pending = False


def is_interrupted() -> bool:
    """Returns whether this worker has got a SIGINT that was not acted on yet."""
    return world.part(_Interrupt).is_pending


def hold_sigint(original: Callable[P, R]) -> Callable[P, R]:
    """Makes SIGINT wait for the end of a step while `fit` runs; a second one is raised at once.

    A script that has a handler of its own keeps it.
    """

    @functools.wraps(original)
    def fit(*args: P.args, **kwargs: P.kwargs) -> R:
        # Python lets the main thread alone set handlers of signals.
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return original(*args, **kwargs)
        world.part(_Interrupt).is_pending = False
        signal.signal(signal.SIGINT, _remember)
        try:
            return original(*args, **kwargs)
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    return fit


def _remember(number: int, frame: FrameType | None) -> None:
    interrupt = world.part(_Interrupt)
    if interrupt.is_pending:
        signal.default_int_handler(number, frame)
    interrupt.is_pending = True
