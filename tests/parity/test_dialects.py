"""Scripts of old APIs on workers, and what they mean in one process: the same weights, on all workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dialects
import numpy as np
import pytest

HERE = Path(__file__).parent
CASES = [case.__name__ for cases in dialects.GROUPS.values() for case in cases]
LEGACY = [
    case.__name__ for group, cases in dialects.GROUPS.items() if group not in dialects.KERAS3_ONLY for case in cases
]
WORLDS = (2, 3, 4)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _results(tmp_path_factory.mktemp("dialects"), WORLDS, {})


@pytest.fixture(scope="module")
def legacy_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _results(tmp_path_factory.mktemp("legacy"), (2,), {"TF_USE_LEGACY_KERAS": "1"})


def _results(root: Path, worlds: tuple[int, ...], env: dict[str, str]) -> Path:
    for workers in (0, *worlds):
        for group in dialects.GROUPS:
            if not env or group not in dialects.KERAS3_ONLY:
                _run(root / str(workers), group, workers, env)
    return root


def _run(out: Path, group: str, workers: int, env: dict[str, str]) -> None:
    out.mkdir(exist_ok=True)
    script = [str(HERE / "dialects.py"), str(out), group]
    syrtos = [str(Path(sys.executable).parent / "syrtos"), "run", "-n", str(workers), "--oversubscribe"]
    command = [*syrtos, "--run-dir", str(out / "run"), *script] if workers else [sys.executable, *script]
    threads = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env={**os.environ, **threads, **env}, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-5000:]


def _compare(root: Path, name: str, worlds: tuple[int, ...]) -> None:
    one = np.load(root / "0" / f"{name}.npz")
    for workers in worlds:
        many = np.load(root / str(workers) / f"{name}.npz")
        for key in one.files:
            difference = np.linalg.norm(one[key] - many[key]) / np.linalg.norm(one[key])
            assert difference <= dialects.TOLERANCE.get(name, 1e-5), f"{workers} workers: {difference}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CASES)
def test_a_dialect_means_what_it_meant(results: Path, name: str) -> None:
    _compare(results, name, WORLDS)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LEGACY)
def test_also_with_keras_2(legacy_results: Path, name: str) -> None:
    _compare(legacy_results, name, (2,))
