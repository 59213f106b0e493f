"""Signals to processes that may be gone by now."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_PR_SET_PDEATHSIG = 1
# By these schedulers ask for the end of a job before its time limit: Slurm's `--signal=USR1@120`,
# Grid Engine's `-notify`, LSF.
_OF_SCHEDULERS = (signal.SIGUSR1, signal.SIGUSR2)
# not loaded after a fork: another thread may have held the loader's lock
_LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Lets Linux kill this process when its parent ends (prctl(2))."""
    # Even a launcher that is killed leaves no workers.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def death_with_parent(ignores_stop: bool = False) -> Callable[[], None]:
    """Returns a ``preexec_fn`` of `subprocess.Popen`: the new process ends when this one does.

    Args:
        ignores_stop: whether the new process ignores SIGTERM. systemd and schedulers send it to all
            processes of a run: ssh is still needed then, and leaves a signal ignored that it finds
            ignored.
    """
    parent = os.getpid()

    def apply() -> None:
        die_with_parent()
        if os.getppid() != parent:
            # It has ended before the line above.
            os.kill(os.getpid(), signal.SIGKILL)
        if ignores_stop:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    return apply


@contextmanager
def answering_signals(answer: Callable[[int], None]) -> Iterator[None]:
    """Context manager: signals that stop a run call ``answer`` with their number."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        answer(number)

    wanted = filter(is_wanted, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *_OF_SCHEDULERS))
    before = {number: signal.signal(number, on_signal) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def passing_pauses_on(send: Callable[[int], None]) -> Iterator[Callable[[], None]]:
    """Context manager: Ctrl-Z stops those to whom ``send`` sends signals too, `fg` continues them.

    It gives a function that does so where a pause was asked for since its last call.
    """
    asked = list[int]()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    def pause() -> None:
        if not asked:
            return
        asked.clear()
        send(signal.SIGSTOP)
        # as a process without a handler, which a shell that is gone would not continue
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, on_signal)
        send(signal.SIGCONT)

    before = signal.getsignal(signal.SIGTSTP)
    # a process that is to ignore it does
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGTSTP, on_signal)
    try:
        yield pause
    finally:
        signal.signal(signal.SIGTSTP, before)


def stop_signal(number: int) -> int:
    """Returns the signal that scripts get where a launcher has got the one of this number."""
    return signal.SIGTERM if number in _OF_SCHEDULERS else number


def terminate() -> None:
    """Sends this process the signal by which schedulers end a run; its main thread answers it."""
    # Handlers run in the main thread, which this wakes from what it waits for.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def is_wanted(number: int) -> bool:
    """Returns whether a signal is to be answered."""
    # A process that `nohup` has started is to outlive its terminal.
    return number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN


def to_process(pid: int, number: int) -> None:
    """Sends a signal to one process; does nothing if it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def to_group(pid: int, number: int) -> None:
    """Sends a signal to the process group that ``pid`` leads; does nothing if it is gone."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
