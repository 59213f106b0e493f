"""The two answers of the `syrtos` command to Ctrl-C: it ends at once, or `KeyboardInterrupt`."""

from __future__ import annotations

import signal


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
