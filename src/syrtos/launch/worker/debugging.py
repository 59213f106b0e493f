"""A worker that a debugger may attach to, once `syrtos attach` has asked for it.

Question and answer are files in the folder of a generation. Until it is asked a worker imports no
debugger and listens nowhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from syrtos.json_files import document
from syrtos.launch.worker.heartbeat import hide_from_debuggers, position

_FOLDER, _ANSWER = "attach", ".json"
LOOK = 1.0  # seconds between two looks for a question


def watch(run_dir: Path, rank: int, unlimited: Callable[[], None]) -> None:
    """Answers each question of `ask` in a thread.

    Args:
        run_dir: the folder of this generation.
        rank: this worker's.
        unlimited: is called once any worker of this folder is asked for, as the others will wait
            for it as long as a breakpoint holds it.
    """
    question = _question(run_dir, rank)
    answer = question.with_suffix(_ANSWER)
    # An earlier run in this folder was asked, on another host perhaps.
    for path in (question, answer):
        with contextlib.suppress(OSError):
            path.unlink()

    def look() -> None:
        # signals are for the script, which may wait for them
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        hide_from_debuggers()
        pause = threading.Event()
        is_asked = False
        while not is_asked:
            pause.wait(LOOK)
            with contextlib.suppress(OSError):
                is_asked = any(question.parent.glob("rank-*"))
        unlimited()
        found: dict[str, object] = {}
        while True:
            # a disk that is full, or gone, is no error of the script
            with contextlib.suppress(OSError):
                if question.exists():
                    found = found if "port" in found else _listen()
                    answer.write_text(json.dumps(found), "utf-8")
                    question.unlink()
            pause.wait(LOOK)

    threading.Thread(target=look, daemon=True, name="syrtos-attach").start()


def ask(
    run_dir: Path, rank: int, patience: float, goes_on: Callable[[], bool]
) -> dict[str, object]:
    """Asks a worker to listen for a debugger; a worker that listens already is not asked again.

    Args:
        run_dir: the folder of the generation that runs.
        rank: the worker's.
        patience: seconds until it must have answered.
        goes_on: returns whether its run goes on, without which it is not waited for.

    Returns:
        ``host`` and ``port`` where it listens, its ``pid``, the ``machine`` and the ``position`` of
        its script; or ``error``, why it does not. Empty if it has not answered.

    Raises:
        OSError: nothing can be written in the folder.
    """
    question = _question(run_dir, rank)
    path = question.with_suffix(_ANSWER)
    if "port" in (known := document(path)):
        return known
    question.parent.mkdir(mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)
    deadline = time.monotonic() + patience
    while not (answer := document(path)):
        question.touch()  # again: a worker that only begins removes older questions
        if time.monotonic() >= deadline or not goes_on():
            question.unlink(missing_ok=True)  # nobody would know where it listens
            break
        time.sleep(0.1)
    return answer


def forget(run_dir: Path) -> None:
    """Removes what workers of an earlier generation in this folder were asked and have answered."""
    shutil.rmtree(run_dir / _FOLDER, ignore_errors=True)


def _question(run_dir: Path, rank: int) -> Path:
    return run_dir / _FOLDER / f"rank-{rank}"


def _listen() -> dict[str, object]:
    # before the debugger's own threads look at the frames
    where = position(sys._current_frames().get(threading.main_thread().ident or 0))
    # the process that debugpy starts would inherit what is blocked here
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        import debugpy

        debugpy.configure(subProcess=False)
        # Anybody on this machine may connect, as with every debugpy.
        host, port = debugpy.listen(("127.0.0.1", 0))
    except ModuleNotFoundError:
        return {"error": f"debugpy is missing: `{sys.executable} -m pip install debugpy`"}
    # An error of the debugger's is the person's to read who has asked for it.
    except Exception as error:
        return {"error": f"debugpy can't listen: {type(error).__name__}: {error}"}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    pid, machine = os.getpid(), socket.gethostname()
    return {"host": host, "port": port, "pid": pid, "machine": machine, "position": where}
