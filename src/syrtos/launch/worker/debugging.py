"""A worker that a debugger may attach to, once `syrtos attach` has asked for it.

Question and answer are files in the folder of a generation. Until it is asked a worker imports no
debugger and listens nowhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from syrtos.json_files import document
from syrtos.launch.worker.heartbeat import hide_from_debuggers, position

LOOK = 1.0  # seconds between two looks for a question


def watch(run_dir: Path, rank: int, unlimited: Callable[[], None]) -> None:
    """Answers a question of `ask` in a thread.

    Args:
        run_dir: the folder of this generation.
        rank: this worker's.
        unlimited: is called once any worker of this folder is asked for, as the others will wait
            for it as long as a breakpoint holds it.
    """

    def look() -> None:
        # signals are for the script, which may wait for them
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        hide_from_debuggers()
        pause, folder = threading.Event(), run_dir / "attach"
        while not folder.exists():
            pause.wait(LOOK)
        unlimited()
        while not _question(run_dir, rank).exists():
            pause.wait(LOOK)
        with contextlib.suppress(OSError):
            _answer(run_dir, rank).write_text(json.dumps(_listen()), "utf-8")

    threading.Thread(target=look, daemon=True, name="syrtos-attach").start()


def ask(run_dir: Path, rank: int, patience: float) -> dict[str, object]:
    """Asks a worker to listen for a debugger; a worker that listens already is not asked again.

    Args:
        run_dir: the folder of the generation that runs.
        rank: the worker's.
        patience: seconds until it must have answered.

    Returns:
        ``host`` and ``port`` where it listens, its ``pid``, the ``machine`` and the ``position`` of
        its script; or ``error``, why it does not. Empty if it has not answered.
    """
    question = _question(run_dir, rank)
    question.parent.mkdir(mode=0o700, exist_ok=True)
    question.touch()
    deadline = time.monotonic() + patience
    while not (answer := document(_answer(run_dir, rank))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return answer


def _question(run_dir: Path, rank: int) -> Path:
    return run_dir / "attach" / f"rank-{rank}"


def _answer(run_dir: Path, rank: int) -> Path:
    return run_dir / "attach" / f"rank-{rank}.json"


def _listen() -> dict[str, object]:
    # before the debugger's own threads look at the frames
    where = position(sys._current_frames().get(threading.main_thread().ident or 0))
    try:
        import debugpy

        debugpy.configure(subProcess=False)
        # Anybody on this machine may connect, as with every debugpy: the port is open only from now on.
        host, port = debugpy.listen(("127.0.0.1", 0))
    except ModuleNotFoundError:
        return {"error": f"debugpy is missing: `{sys.executable} -m pip install debugpy`"}
    # An error of the debugger's is the person's to read who has asked for it.
    except Exception as error:
        return {"error": f"debugpy can't listen: {type(error).__name__}: {error}"}
    pid, machine = os.getpid(), socket.gethostname()
    return {"host": host, "port": port, "pid": pid, "machine": machine, "position": where}
