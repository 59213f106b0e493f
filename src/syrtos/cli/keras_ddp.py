"""`syrtos verify --of keras`: a script under Keras's own data parallelism, compared with one process."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from syrtos import settings
from syrtos.errors import LaunchError
from syrtos.interrupts import raise_end_signals
from syrtos.launch.processes import signalling
from syrtos.launch.program import Program

_PROGRAM = "syrtos.keras.torch.keras_ddp"
_KEPT, _COMPARED = "one-process.safetensors", "compared.json"
_LINES = 5  # of a failed process
_LOOK = 0.1  # seconds


def compare(program: Program, workers: int, folder: Path) -> list[Mapping[str, Any]]:
    """Runs the first batch of a script in one process and on workers, and returns what was compared.

    The list is empty where the script calls no `fit`: it has run whole then, in one process.

    Raises:
        LaunchError: a process failed; the message has its last lines, and names its log.
        KeyboardInterrupt: this process was asked to end, by any signal.
    """
    raise_end_signals()
    _run(program, 1, folder)
    if not (folder / _KEPT).exists():
        return []
    _run(program, workers, folder)
    found = json.loads((folder / _COMPARED).read_text())
    return [found | {"whole": "", "gathered": "", "operations": 0}]


def _run(program: Program, size: int, folder: Path) -> None:
    env = {**settings.environment(), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    logs = [folder / f"{size}-processes-rank-{rank}.log" for rank in range(size)]
    with contextlib.ExitStack() as ending:
        started: list[subprocess.Popen[bytes]] = []
        for rank, log in enumerate(logs):
            command = [sys.executable, *program.flags, "-m", _PROGRAM, str(folder), str(rank)]
            file = ending.enter_context(log.open("wb"))
            started.append(
                subprocess.Popen(
                    [*command, str(size), *program.words],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                    preexec_fn=signalling.death_with_parent(),
                )
            )
            ending.callback(_end, started[-1])
        failed = _await_failure(started)
    if failed is not None:
        lines = logs[failed].read_text(errors="replace").strip().splitlines()[-_LINES:]
        said = "\n".join(lines).removeprefix("syrtos: ")
        raise LaunchError(f"{said}\nIts output is in {logs[failed]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and those that it has started, and waits for it."""
    signalling.to_group(process.pid, signal.SIGKILL)
    process.wait()


def _await_failure(started: list[subprocess.Popen[bytes]]) -> int | None:
    """Waits until a process fails, and returns its rank; None where all end well."""
    left = dict(enumerate(started))
    while left:
        for rank, process in list(left.items()):
            if process.poll() is not None:
                del left[rank]
                if process.returncode:
                    return rank
        time.sleep(_LOOK)
    return None
