"""Runs of the scripts that check what a user expects of a backend of Keras."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from registry import QUICK_XLA

SCRIPTS = Path(__file__).parent / "scripts"


def run(
    backend: str, workers: int, folder: Path, *words: object, flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """``syrtos run`` with KERAS_BACKEND, started as a user starts it."""
    command = [sys.executable, "-m", "syrtos", "run", "-n", str(workers), "--run-dir", str(folder / "run"), *flags]
    env = {"XLA_FLAGS": QUICK_XLA, **os.environ, "KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *map(str, words)], env=env, capture_output=True, text=True, timeout=800)


def check(
    backend: str, workers: int, folder: Path, checks: str, flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs the named checks of the backend's script; each must say that it came to its end."""
    folder.mkdir()
    script = SCRIPTS / f"{backend}_behaviours.py"
    done = run(backend, workers, folder, script, checks, folder, flags=("--oversubscribe", *flags))
    assert done.returncode == 0, done.stderr[-4000:]
    for name in checks.split(","):
        assert f"ok {name}" in done.stdout
    return done
