"""A dialect and an option of training of another package: syrtos finds them by their entry points."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

# The old API trains with one call; `keras.utils` gets a name that it never had.
DIALECT = """
from syrtos.dialects.dialect import Dialect

DIALECT = Dialect(
    "oldtrain",
    serves={"oldtrain": "toy_api", "oldtrain.data": "toy_data"},
    adds_to=("keras",),
    installer="toy_dialect:install",
    needs_tensorflow=False,
)

def install():
    import keras

    keras.utils.old_name = "added"
"""
API = """
import syrtos

def train(model, data):
    return model.fit(*data, batch_size=16, epochs=2, shuffle=False, verbose=0)

def rank():
    return syrtos.rank()
"""
DATA = """
import numpy as np

def rows():
    rng = np.random.default_rng(1)
    return rng.normal(size=(60, 4)).astype("float32"), rng.normal(size=(60, 1)).astype("float32")
"""
OF_DIALECT = """
import oldtrain
import oldtrain.data
import keras

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = oldtrain.train(model, oldtrain.data.rows())
if oldtrain.rank() == 0:
    print(keras.utils.old_name, f"{history.history['loss'][-1]:.6f}", flush=True)
"""

# Gradients of matrices without their mean (Yong et al. 2020, arXiv:2004.01461), and with a count
# that outlives a worker.
FEATURE = """
import numpy as np
from syrtos import settings
from syrtos.keras.features.feature import Feature

class Centralized(Feature):
    name = "centralized"

    def __init__(self, session):
        super().__init__(session)
        self.batches = 0

    @classmethod
    def is_asked(cls, session):
        return settings.environment().get("TOY_CENTRALIZED") == "1"

    def batch_ends(self, fit, logs):
        self.batches += 1

    def change_gradients(self, update, grads):
        import keras

        assert [tuple(v.shape) for v in update.variables] == [tuple(g.shape) for g in grads]
        return [
            g - keras.ops.mean(g, axis=0, keepdims=True) if len(g.shape) == 2 else g for g in grads
        ]

    def epoch_facts(self, fit):
        return {"centralized": self.batches}

    def arrays(self, fit):
        return {"centralized batches": np.array(self.batches)}

    def put_back(self, arrays, fit):
        self.batches = int(np.asarray(arrays["centralized batches"]).view(np.int64).item())
"""
OF_FEATURE = """
import os, signal, sys
import keras, numpy as np

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(60, 4)).astype("float32"), rng.normal(size=(60, 1)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, clipnorm=1.0), "mse")

class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and os.environ.get("TOY_KILL") and not os.path.exists("killed"):
            if os.environ.get("SYRTOS_RANK", os.environ.get("PMI_RANK")) == "1":
                open("killed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)

model.fit(x, y, batch_size=16, epochs=4, shuffle=False, verbose=0, callbacks=[Kill()])
np.savez("weights.npz", *model.get_weights())
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    facts = tmp_path / "toy-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        "[syrtos.dialects]\noldtrain = toy_dialect:DIALECT\n"
        "[syrtos.features]\ncentralized = toy_feature:Centralized\n"
    )
    files = {
        "toy_dialect.py": DIALECT,
        "toy_api.py": API,
        "toy_data.py": DATA,
        "toy_feature.py": FEATURE,
        "dialect.py": OF_DIALECT,
        "feature.py": OF_FEATURE,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def syrtos(package: Path, workers: int, script: str, *flags: str, **env: str) -> str:
    command = [sys.executable, "-m", "syrtos", "run", "-n", str(workers), "--oversubscribe"]
    shutil.rmtree(package / "run", ignore_errors=True)
    ended = subprocess.run(
        [*command, "--run-dir", "run", *flags, script],
        cwd=package,
        env={**os.environ, "PYTHONPATH": str(package), **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


# Each backend takes ten seconds to half a minute.
SLOW = pytest.mark.slow


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("torch", marks=SLOW)])
def test_an_entry_point_adds_a_dialect(package: Path, backend: str) -> None:
    # One imports Keras by itself, the others have it from a process that has imported its framework first.
    alone = {"SYRTOS_NEW_INTERPRETERS": "1"}
    said = [
        syrtos(package, n, "dialect.py", KERAS_BACKEND=backend, **env).split()
        for n, env in ((1, alone), (2, {}))
    ]
    assert said[0][0] == said[1][0] == "added"
    assert float(said[0][1]) == pytest.approx(float(said[1][1]), rel=1e-4)


def weights(package: Path, workers: int, backend: str, *flags: str, **env: str) -> list[np.ndarray]:
    syrtos(package, workers, "feature.py", *flags, KERAS_BACKEND=backend, **env)
    with np.load(package / "weights.npz") as found:
        return [found[name] for name in found.files]


@SLOW
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_an_entry_point_adds_an_option_of_training(package: Path, backend: str) -> None:
    alone = weights(package, 1, backend, TOY_CENTRALIZED="1")
    together = weights(package, 2, backend, TOY_CENTRALIZED="1")
    for one, two in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
    if backend == "torch":
        return
    plain = weights(package, 2, backend)
    assert max(np.abs(a - b).max() for a, b in zip(plain, together, strict=True)) > 1e-3
    skipping = weights(package, 2, backend, "--on-nan", "skip", TOY_CENTRALIZED="1")
    for one, two in zip(together, skipping, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
    killed = weights(package, 2, backend, TOY_CENTRALIZED="1", TOY_KILL="1")
    assert (package / "killed").exists()
    for one, two in zip(together, killed, strict=True):
        np.testing.assert_array_equal(one, two)
    epochs = package / "run" / "generation-2" / "ledger" / "epochs.jsonl"
    told = [json.loads(line) for line in epochs.read_text().splitlines()]
    assert told[-1]["centralized"] == 16
