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
CASES = [(group, case.__name__) for group, cases in dialects.GROUPS.items() for case in cases]
WORLDS = (2, 3, 4)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dialects")
    for workers in (0, *WORLDS):
        for group in dialects.GROUPS:
            _run(root / str(workers), group, workers)
    return root


def _run(out: Path, group: str, workers: int) -> None:
    out.mkdir(exist_ok=True)
    script = [str(HERE / "dialects.py"), str(out), group]
    syrtos = [str(Path(sys.executable).parent / "syrtos"), "run", "-n", str(workers), "--oversubscribe"]
    command = [*syrtos, "--run-dir", str(out / "run"), *script] if workers else [sys.executable, *script]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("group", "name"), CASES)
def test_a_dialect_means_what_it_meant(results: Path, group: str, name: str) -> None:
    del group
    one = np.load(results / "0" / f"{name}.npz")
    for workers in WORLDS:
        many = np.load(results / str(workers) / f"{name}.npz")
        for key in one.files:
            difference = np.linalg.norm(one[key] - many[key]) / np.linalg.norm(one[key])
            assert difference <= dialects.TOLERANCE.get(name, 1e-5), f"{workers} workers: {difference}"
