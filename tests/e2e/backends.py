"""Runs of the scripts that check what a user expects of a backend of Keras."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import forking
from named_checks import CheckedRun

SCRIPTS = Path(__file__).parent / "scripts"


def run(
    backend: str, workers: int, folder: Path, *words: object, flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """``syrtos run`` with KERAS_BACKEND, in forked processes."""
    command = forking.syrtos_run(folder / "run", workers, *words, flags=flags)
    return forking.run(command, {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}, timeout=800)


def run_anew(
    backend: str, workers: int, folder: Path, *words: object, flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """The same in new interpreters, as a user starts it."""
    command = [
        sys.executable,
        "-m",
        "syrtos",
        "run",
        "-n",
        str(workers),
        "--run-dir",
        str(folder / "run"),
        *flags,
    ]
    env = {**os.environ, "KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *map(str, words)], env=env, capture_output=True, text=True, timeout=800
    )


def run_checks(
    backend: str,
    workers: int,
    folder: Path,
    names: Sequence[str],
    flags: tuple[str, ...] = (),
    of: str = "behaviours",
) -> CheckedRun:
    """Runs the named checks of the backend's script ``of`` something in a folder that is made for it."""
    folder.mkdir()
    script = SCRIPTS / f"{backend}_{of}.py"
    words = (script, ",".join(names), folder)
    return CheckedRun(run(backend, workers, folder, *words, flags=flags), names)


def check(
    backend: str,
    workers: int,
    folder: Path,
    *names: str,
    flags: tuple[str, ...] = (),
    of: str = "behaviours",
) -> None:
    """Runs the named checks of the backend's script; each must say that it came to its end."""
    run_checks(backend, workers, folder, names, flags, of).check_all()
