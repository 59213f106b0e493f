"""The next release of Keras, by its nightly build: it trains on two workers as in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "scripts" / "next_keras.py"


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the newest nightly build, which precedes the installed Keras."""
    folder = tmp_path_factory.mktemp("nightly")
    command = [sys.executable, "-m", "pip", "install", "-q", "--pre", "--no-deps", "--no-compile"]
    done = subprocess.run(
        [*command, "--target", folder, "keras-nightly"], check=False, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"keras-nightly can't be installed: {done.stderr.strip()[-200:]}")
    return folder


def path_with(nightly: Path) -> str:
    return os.pathsep.join([str(nightly), *filter(None, [os.environ.get("PYTHONPATH")])])


def run(
    command: list[Any], env: dict[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """In a new interpreter: those that tests fork from have imported the installed Keras."""
    return subprocess.run(
        command,
        env={**os.environ, **env},
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def numbers_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("found "))
    return json.loads(line.removeprefix("found "))


@pytest.mark.parametrize(
    "backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.long), "torch"]
)
def test_it_trains_on_two_workers_as_in_one_process(
    nightly: Path, tmp_path: Path, backend: str
) -> None:
    pytest.importorskip(backend)
    env = {"KERAS_BACKEND": backend, "PYTHONPATH": path_with(nightly)}
    one, many = tmp_path / "one", tmp_path / "many"
    one.mkdir()
    many.mkdir()
    wanted = numbers_of(run([sys.executable, SCRIPT, one], env))
    command = [sys.executable, "-m", "syrtos", "run", "-n", "2", "--oversubscribe", "--run-dir"]
    found = numbers_of(run([*command, tmp_path / "run", SCRIPT, many], env))
    assert found.pop("keras") == wanted.pop("keras") >= "3.16"
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        for one_value, value in zip(
            np.ravel(_flat(values)), np.ravel(_flat(found[name])), strict=True
        ):
            np.testing.assert_allclose(value, one_value, rtol=2e-4, atol=2e-5, err_msg=name)


OWN_DDP = """
import keras, numpy as np
x = np.random.default_rng(0).normal(size=(21, 4)).astype("float32")
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x.sum(1), batch_size={batch}, verbose=0)
open("not-reached", "w")
"""


@pytest.mark.parametrize(("batch", "code"), [(7, 1), (6, 0)])
def test_its_own_data_parallelism_is_compared_with_one_process(
    nightly: Path, tmp_path: Path, batch: int, code: int
) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(OWN_DDP.format(batch=batch))
    command = [sys.executable, "-m", "syrtos", "verify", "--of", "keras", "--json", script]
    done = run(command, {"KERAS_BACKEND": "torch", "PYTHONPATH": path_with(nightly)}, tmp_path)
    assert done.returncode == code, done.stderr
    found = json.loads(done.stdout)
    differences = {row["name"]: row["difference"] for row in found["rows"]}
    assert {"loss", "sequential/dense/kernel"} <= differences.keys()
    assert (differences["sequential/dense/kernel"] > 0.01) == bool(code)
    assert not (tmp_path / "not-reached").exists()


def test_a_script_without_fit_runs_once(nightly: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text("open('runs', 'a').write('once ')")
    command = [sys.executable, "-m", "syrtos", "verify", "--of", "keras", script]
    done = run(command, {"KERAS_BACKEND": "torch", "PYTHONPATH": path_with(nightly)}, tmp_path)
    assert done.returncode == 1
    assert "called no `fit`" in done.stderr
    assert (tmp_path / "runs").read_text() == "once "


def _flat(values: Any) -> list[float]:
    return [v for each in values for v in _flat(each)] if isinstance(values, list) else [values]
