"""Lines on standard error that a service, or a job's runner, can do without."""

from __future__ import annotations

import contextlib
import sys
import traceback


def complain(text: str) -> None:
    """Prints a line on standard error; nothing happens if it can't be printed."""
    # its reader may be gone, its disk full, its encoding too small: no thread may end by that
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"syrtos: {text}", file=sys.stderr, flush=True)


def complain_in_full() -> None:
    """Prints the traceback of the exception that is being handled, as `complain` prints a line."""
    complain(traceback.format_exc())
