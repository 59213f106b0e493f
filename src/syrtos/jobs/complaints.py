"""Lines on standard error that a service, or a job's runner, can do without."""

from __future__ import annotations

import contextlib
import io
import select
import sys
import traceback

_LONGEST = 3500  # characters: a pipe that has room for some has room for that (pipe(7))


def complain(text: str) -> None:
    """Prints a line on standard error; nothing happens if it can't be printed."""
    # its reader may be gone or asleep, its disk full, its encoding too small: no thread may end by
    # that, or wait for it
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if _has_room():
            print(f"syrtos: {text[-_LONGEST:]}", file=sys.stderr, flush=True)


def _has_room() -> bool:
    """Returns whether standard error takes a line now, or within a second."""
    poll = select.poll()
    try:
        poll.register(sys.stderr.fileno(), select.POLLOUT)
    except io.UnsupportedOperation:
        # a notebook's, or a test's
        return True
    return bool(poll.poll(1000))


def complain_in_full() -> None:
    """Prints the traceback of the exception that is being handled, as `complain` prints a line."""
    complain(traceback.format_exc())
