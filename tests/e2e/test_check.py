"""`syrtos check`: this machine, and a stock step of each backend that is compared with one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SYRTOS = Path(sys.executable).parent / "syrtos"


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.long), "torch"]
)
def test_a_machine_that_trains(tmp_path: Path, backend: str) -> None:
    env = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [SYRTOS, "check"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 workers computed what one process does" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("This machine trains on several workers")
    assert os.listdir(tmp_path) == []


def test_a_backend_that_is_not_there_is_wrong(tmp_path: Path) -> None:
    env = {**os.environ, "KERAS_BACKEND": "mxnet"}
    done = subprocess.run(
        [SYRTOS, "check"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "can't train on several workers yet" in done.stdout


def test_one_worker_is_refused() -> None:
    done = subprocess.run([SYRTOS, "check", "-n", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Expected: `-n 2` or more" in done.stderr
