"""A worker's signs of life.

The launcher knows by them that Python code runs in the worker, and where its script is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from syrtos.launch.worker.tracebacks import is_of_script

# Seconds between two of them.
EVERY = 5.0


def start(tell: Callable[[str], None]) -> None:
    """Calls ``tell`` with the position of the script every few seconds, in a thread.

    No call comes while other code holds the GIL, or while the process is stopped.
    """
    main = threading.main_thread().ident

    def beat() -> None:
        # signals are for the script, which may wait for them
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        hide_from_debuggers()
        pause = threading.Event()
        while not pause.wait(EVERY):
            # the script may have closed a descriptor that it did not open
            with contextlib.suppress(OSError):
                tell(position(sys._current_frames().get(main or 0)))

    threading.Thread(target=beat, daemon=True, name="syrtos-heartbeat").start()


def hide_from_debuggers() -> None:
    """Lets this thread run on while a breakpoint holds the others of this process."""
    # the attributes by which pydevd, of which debugpy is made, knows its own
    vars(threading.current_thread()).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)


def position(frame: FrameType | None) -> str:
    """Returns the innermost line of the script's own below ``frame``; empty if there is none.

    It reads as ``train.py:57, in `upload` ``.
    """
    while frame is not None:
        code = frame.f_code
        if is_of_script(code.co_filename) and "__autograph_generated_file" not in code.co_filename:
            return f"{os.path.basename(code.co_filename)}:{frame.f_lineno}, in `{code.co_name}`"
        frame = frame.f_back
    return ""
