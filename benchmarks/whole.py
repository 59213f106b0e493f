"""What whole runs cost: wall time, processor time and memory of all processes, from the command to the prompt.

``whole.py ROUNDS [SCRIPT ...]`` prints JSON lines. Memory is the proportional set size: pages that processes share count in parts (proc(5), `smaps_rollup`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
SCRIPTS = {path.stem: path for path in sorted((HERE / "whole_scripts").glob("*.py"))}
SCRIPTS["digits"] = HERE.parent / "examples" / "digits.py"
OF_TENSORFLOW = ("short_fits", "adapted")


def ways(script: Path, backend: str) -> Iterator[tuple[str, list[str]]]:
    """Who runs a script, and the command."""
    yield "python", [sys.executable, str(script)]
    for workers in (1, 2, 4):
        run = [
            str(BIN / "syrtos"),
            "run",
            "-n",
            str(workers),
            "--oversubscribe",
            "--run-dir",
            tempfile.mkdtemp(),
        ]
        yield f"syrtos -n {workers}", [*run, str(script)]
    if backend == "torch":  # these start two processes, each of which trains by itself
        yield (
            "torchrun, 2",
            [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", str(script)],
        )
        if importlib.util.find_spec("accelerate"):
            launch = [
                "launch",
                "--cpu",
                "--num_processes",
                "2",
                "--num_machines",
                "1",
                "--mixed_precision",
                "no",
            ]
            yield (
                "accelerate, 2",
                [str(BIN / "accelerate"), *launch, "--dynamo_backend", "no", str(script)],
            )


def measured(command: list[str], backend: str) -> dict[str, Any]:
    """One run of a command."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = _Peak(process.pid)
    _, said = process.communicate(timeout=900)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        return {"error": said.decode(errors="replace")[-300:]}
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "median_ms": round(wall * 1e3, 1),
        "cpu_seconds": round(cpu, 2),
        "pss_mb": round(peak.found() / 1e6),
    }


class _Peak:
    """The most memory that a process and those that it has started take together, looked at several times a second."""

    def __init__(self, pid: int) -> None:
        self._process, self._most, self._over = psutil.Process(pid), 0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.3):
            try:
                family = [self._process, *self._process.children(recursive=True)]
            except psutil.Error:
                continue
            self._most = max(self._most, sum(map(_pss, family)))

    def found(self) -> int:
        """In bytes."""
        self._over.set()
        self._thread.join()
        return self._most


def _pss(process: psutil.Process) -> int:
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def main(rounds: int, names: list[str]) -> None:
    """Each way once in each round, one after the other."""
    for _ in range(rounds):
        for name in names or SCRIPTS:
            for backend in ("tensorflow", "jax", "torch"):
                if backend != "tensorflow" and name in ("empty", *OF_TENSORFLOW):
                    continue
                for who, command in ways(SCRIPTS[name], backend):
                    line = {
                        "work": f"whole {name} {backend}",
                        "peer": who,
                        **measured(command, backend),
                    }
                    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
