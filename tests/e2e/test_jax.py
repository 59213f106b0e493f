"""Keras on JAX: what a user expects of a run, each checked by every worker from inside, and how a run ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parent / "scripts"
BEHAVIOURS = SCRIPTS / "jax_behaviours.py"
CHECKS = [
    "one_program", "cleared_session", "generators_and_steps", "planned_data", "different_weights", "different_data", "steps_that_are_not_compiled",
    "rows_of_each_worker", "resumed_with_accumulation", "files",
    "learning_rate_and_early_stopping", "model_parallel", "devices_of_one_worker",
]  # fmt: skip


def run(workers: int, folder: Path, *words: object, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "syrtos", "run", "-n", str(workers), "--run-dir", str(folder / "run"), *flags]
    env = {**os.environ, "KERAS_BACKEND": "jax", "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *map(str, words)], env=env, capture_output=True, text=True, timeout=280)


def check(workers: int, folder: Path, checks: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    done = run(workers, folder, BEHAVIOURS, checks, folder, flags=("--oversubscribe",))
    assert done.returncode == 0, done.stderr[-4000:]
    for name in checks.split(","):
        assert f"ok {name}" in done.stdout
    return done


def test_workers_compute_what_one_process_computes(tmp_path: Path) -> None:
    check(1, tmp_path / "1", "one_program")
    done = check(2, tmp_path / "2", ",".join(CHECKS))
    one, two = (dict(np.load(tmp_path / str(n) / "one_program.npz")) for n in (1, 2))
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-5, atol=2e-6, err_msg=name)
    assert "tracing" in done.stderr
    assert "compute + exchange" in done.stderr
    assert "Gloo" not in done.stderr
    assert "recoverable" not in done.stderr


@pytest.mark.slow
def test_learning_rate_warms_up(tmp_path: Path) -> None:
    done = run(2, tmp_path, BEHAVIOURS, "warm_up", tmp_path, flags=("--scale-lr", "linear", "--warmup-epochs", "2"))
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_long_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    check(2, tmp_path / "2", "cleared_session")


def test_tensorflow_need_not_be_installed(tmp_path: Path) -> None:
    done = run(2, tmp_path, SCRIPTS / "jax_without_tensorflow.py", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "trained without TensorFlow" in done.stdout


@pytest.mark.slow
def test_three_workers_compute_what_one_process_computes(tmp_path: Path) -> None:
    for workers in (1, 3):
        check(workers, tmp_path / str(workers), "one_program")
    one, three = (dict(np.load(tmp_path / str(n) / "one_program.npz")) for n in (1, 3))
    for name in one:
        np.testing.assert_allclose(one[name], three[name], rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "rank", "code", "text"),
    [
        ("SIGKILL", 1, 128 + signal.SIGKILL, "rank 1 on .* was ended by SIGKILL"),
        ("SIGKILL", 0, 128 + signal.SIGKILL, "rank 0 on .* was ended by SIGKILL"),
        ("raise", 1, 1, "RuntimeError: this rank fails"),
        ("exit", 1, 1, "rank 1 on .* ended with exit code 0 before its script had come to its end"),
        ("SIGSTOP", 1, 1, "has waited 5 s for the other workers"),
    ],
)
def test_one_worker_ends_the_run_within_seconds(tmp_path: Path, how: str, rank: int, code: int, text: str) -> None:
    done = run(2, tmp_path, SCRIPTS / "jax_ends.py", how, rank, flags=("--timeout", "5"))
    assert done.returncode == code, done.stderr[-3000:]
    assert re.search(text, done.stderr), done.stderr[-3000:]


def test_options_without_a_meaning_are_refused(tmp_path: Path) -> None:
    done = run(2, tmp_path, SCRIPTS / "jax_ends.py", "raise", 0, flags=("--batch", "per-worker"))
    assert done.returncode == 1
    assert "`--batch per-worker` has no meaning with KERAS_BACKEND=jax" in done.stderr
