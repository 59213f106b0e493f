"""The wheel that `make dist` builds trains on two workers, in an environment that has nothing else and far from the checkout.

With JAX in `make test-slow`: TensorFlow needs a gigabyte and two minutes to be installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import keras
import numpy as np
import syrtos

syrtos.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.random.default_rng(1).normal(size=(64, 4)).astype("float32")
losses = model.fit(x, x.sum(1), batch_size=8, epochs=5, verbose=0).history["loss"]
assert losses[-1] < losses[0], losses
print("trained by", syrtos.size(), "with", syrtos.__file__)
"""
# Nothing that leads to the checkout.
ENV = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
}


@pytest.fixture
def environment(backend: str) -> Iterator[Path]:
    """An environment with the wheel and a framework, which is removed in the end."""
    if missing := [name for name in ("build", "twine") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"needs the extra `dist`: {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="syrtos-wheel-") as name:
        folder = Path(name)
        subprocess.run([sys.executable, ROOT / ".ci" / "dist.py", folder / "dist"], check=True)
        venv.create(folder / "env", with_pip=True)
        wheel = next((folder / "dist").glob("*.whl"))
        install = [
            folder / "env/bin/python",
            "-m",
            "pip",
            "install",
            "-qq",
            "--no-compile",
            "-c",
            ROOT / "constraints.txt",
        ]
        subprocess.run([*install, f"{wheel}[{backend}]"], check=True, cwd=folder, env=ENV)
        yield folder / "env"


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("jax", marks=pytest.mark.slow),
        pytest.param("tensorflow", marks=pytest.mark.long),
    ],
)
def test_an_installed_wheel_trains(environment: Path, backend: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    env = ENV | {"KERAS_BACKEND": backend, "PATH": f"{environment}/bin:{os.environ['PATH']}"}
    command = [environment / "bin/syrtos", "run", "-n", "2", "--oversubscribe", "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"trained by 2 with {environment}" in done.stdout
