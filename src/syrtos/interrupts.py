"""Answers to signals that end a command: it ends at once, or `KeyboardInterrupt` is raised."""

from __future__ import annotations

import signal
from types import FrameType


class EndSignal(KeyboardInterrupt):
    """A signal other than SIGINT asks a command to end.

    Attributes:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number))
        self.number = number


def end_at_interrupts() -> None:
    """Lets Ctrl-C end the process at once, as it ends programs that are not Python's.

    Python's own way, an exception, would come in the middle of imports: it is printed, or gets lost
    in code that was not made for it. It is left alone where Ctrl-C is ignored (`nohup`).
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_interrupts() -> None:
    """Has Ctrl-C raise `KeyboardInterrupt` from now on, for code that tidies up after it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def raise_end_signals() -> None:
    """Has SIGTERM and SIGHUP raise `EndSignal` from now on, where they would end the process.

    A process that `nohup` has started is to outlive its terminal.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _raise)


def exit_code(error: KeyboardInterrupt) -> int:
    """Returns the exit code of a command that a signal has ended."""
    return 128 + (error.number if isinstance(error, EndSignal) else signal.SIGINT)


def _raise(number: int, _frame: FrameType | None) -> None:
    raise EndSignal(number)
