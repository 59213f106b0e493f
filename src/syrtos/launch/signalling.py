"""Signals to processes that may be gone by now."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # not loaded after a fork: another thread may have held the loader's lock


def die_with_parent() -> None:
    """Even a launcher that is killed leaves no workers: Linux kills what it has started with it (prctl(2))."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def answered(answer: Callable[[int], None]) -> Iterator[None]:
    """Inside, signals that stop a run call ``answer`` with their number. SIGUSR1, as Slurm's `--signal=USR1@120` sends it, counts as SIGTERM."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        answer(signal.SIGTERM if number == signal.SIGUSR1 else number)

    wanted = filter(is_wanted, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1))
    before = {number: signal.signal(number, on_signal) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_wanted(number: int) -> bool:
    """Whether a signal is to be answered: not SIGHUP where `nohup` has started this process, which is to outlive its terminal."""
    return number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN


def to_process(pid: int, number: int) -> None:
    """To one process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def to_group(pid: int, number: int) -> None:
    """To all processes of the group that ``pid`` leads."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
