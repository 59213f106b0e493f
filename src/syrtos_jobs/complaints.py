"""Lines on standard error that a service, or a job's runner, can do without."""

from __future__ import annotations

import contextlib
import errno
import io
import select
import sys
import traceback

from sqlalchemy import exc

from syrtos_jobs.store.database import is_full, may_pass

FULL = "The disk of the service is full: make room on it, and try again."
_LOCKED = (
    "The database of the service is locked by another process, or can't be reached: try again, and"
    " see what holds it."
)
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
    """Prints the traceback of the exception that is being handled, as `complain` prints a line.

    A sentence takes its place where the machine is the cause.
    """
    complain(hindrance(sys.exc_info()[1]) or traceback.format_exc())


def describe(error: Exception) -> str:
    """Returns an error in words."""
    return hindrance(error) or str(error)


def hindrance(error: BaseException | None) -> str:
    """Returns what of the machine an error comes from, as a sentence; empty if it is another one.

    The sentence is for anybody: it names no files and no jobs.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FULL
    if isinstance(error, exc.OperationalError):
        return FULL if is_full(error) else _LOCKED if may_pass(error) else ""
    return ""
