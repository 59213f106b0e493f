"""`syrtos tune batch` and `syrtos tune lr` on real scripts: trials are real runs, and memory really ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import forking

ENV = {"TF_CPP_MIN_LOG_LEVEL": "3"}
BACKENDS = ["tensorflow", "jax", "torch"]
# Learns a line from 16 numbers. What it does after `fit`, and its callbacks, would leave files.
SCRIPT = """
import sys
from pathlib import Path
import keras, numpy as np
kind, rate = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1e-3
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(330, 16)).astype("float32")
y = x @ np.linspace(-1, 1, 16).astype("float32")[:, None]
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
schedule = keras.optimizers.schedules.CosineDecay(rate, 10**6)
model.compile(keras.optimizers.Adam(schedule), "mse")
class Rows(keras.utils.PyDataset):
    def __len__(self): return 11
    def __getitem__(self, i): return x[i * 32 : (i + 1) * 32], y[i * 32 : (i + 1) * 32]
def endless():
    while True:
        yield from (Rows()[i] for i in range(10))
class Noted(keras.callbacks.Callback):
    def on_train_begin(self, logs=None): Path("left-behind-callback").touch()
    def on_test_begin(self, logs=None): Path("left-behind-validation").touch()
more = {"callbacks": [Noted(), keras.callbacks.ModelCheckpoint("left-behind.keras")], "validation_data": (x, y), "verbose": 0}
if kind == "split": model.fit(x, y, batch_size=32, validation_split=0.1, verbose=0)
if kind == "arrays": history = model.fit(x, y, batch_size=32, epochs=4, **more)
if kind == "rows": model.fit(Rows(), epochs=2, **more)
if kind == "generator": model.fit(endless(), steps_per_epoch=10, epochs=2, **more)
if kind == "pipeline":
    import tensorflow as tf
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(32), epochs=2, **more)
if kind == "loader":
    import torch
    data = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    model.fit(torch.utils.data.DataLoader(data, batch_size=32, shuffle=True), epochs=2, **more)
if kind == "nan": model.fit(x, y * np.nan, **more)
if kind == "loop": model.train_on_batch(x, y)
if kind == "error": raise ValueError("an error of the script")
Path("left-behind-rest").touch()
if kind == "arrays": print("loss", history.history["loss"][-1])
"""
# Each row of a batch takes some 100 kB; the address space has room for some thousands of them.
WIDE = """
import resource, sys
import keras, numpy as np
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]) << 20,) * 2)
x = np.zeros((int(sys.argv[2]), 8), "float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(20000, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=int(sys.argv[2]), epochs=3)
"""
HOROVOD = """
import keras, numpy as np
import horovod.keras as hvd
hvd.init()
x = np.random.default_rng(0).normal(size=(640, 16)).astype("float32")[hvd.rank() :: hvd.size()]
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
model.fit(x, x[:, :1], batch_size=32, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""


def tuned(
    folder: Path,
    form: str,
    script: str,
    *words: object,
    flags: tuple[object, ...] = (),
    backend: str = "tensorflow",
) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    command = [
        "syrtos",
        "tune",
        form,
        "--json",
        "--oversubscribe",
        "--run-dir",
        folder / "tuned",
        *flags,
        "train.py",
        *words,
    ]
    return forking.run(command, {**ENV, "KERAS_BACKEND": backend}, cwd=folder)


def found(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def check_nothing_is_left(folder: Path) -> None:
    assert not list(folder.glob("left-behind*"))


# -- rates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "backend",
    ["tensorflow", *(pytest.param(name, marks=pytest.mark.long) for name in ("jax", "torch"))],
)
def test_each_batch_has_its_own_loss_at_its_own_rate_on_one_worker_and_on_two(
    tmp_path: Path, backend: str
) -> None:
    flags = ("--from", 1e-4, "--to", 0.1, "--steps", 25)
    one = json.loads(tuned(tmp_path, "lr", SCRIPT, "arrays", flags=flags, backend=backend).stdout)
    assert one["rates"][0] == pytest.approx(1e-4)
    assert one["rates"][-1] == pytest.approx(0.1)
    assert (tmp_path / "tuned" / "tune.html").stat().st_size > 100_000
    two = json.loads(
        tuned(tmp_path, "lr", SCRIPT, "arrays", flags=("-n", 2, *flags), backend=backend).stdout
    )
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-3)
    check_nothing_is_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    ["tensorflow", *(pytest.param(name, marks=pytest.mark.long) for name in ("jax", "torch"))],
)
def test_training_at_the_recommended_rate_is_better_than_far_from_it(
    tmp_path: Path, backend: str
) -> None:
    recommended = found(
        tuned(tmp_path, "lr", SCRIPT, "arrays", flags=("--to", 10), backend=backend)
    )["recommended"]

    def loss(rate: float) -> float:
        done = forking.run(
            [tmp_path / "train.py", "arrays", rate], {**ENV, "KERAS_BACKEND": backend}, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        return float(done.stdout.split()[-1])

    assert loss(recommended) < min(loss(recommended / 100), loss(recommended * 100))


@pytest.mark.slow
def test_what_can_not_be_tested_is_said(tmp_path: Path) -> None:
    loop = tuned(tmp_path, "lr", SCRIPT, "loop")
    assert loop.returncode == 1
    assert "`train_on_batch`" in loop.stderr
    nan = tuned(tmp_path, "lr", SCRIPT, "nan")
    assert nan.returncode == 1
    assert "in the first batch" in nan.stderr
    error = tuned(tmp_path, "batch", SCRIPT, "error")
    assert error.returncode == 1
    assert "ValueError: an error of the script" in error.stderr
    assert "train.py" in error.stderr


# -- batches ------------------------------------------------------------------------------------------

KINDS = [("pipeline", "tensorflow"), ("loader", "torch")]
MORE_KINDS = [
    ("split", "tensorflow"),
    ("pipeline", "jax"),
    ("rows", "tensorflow"),
    ("generator", "tensorflow"),
    ("rows", "torch"),
]


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("arrays", "tensorflow"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in KINDS),
        *(pytest.param(*each, marks=pytest.mark.long) for each in MORE_KINDS),
    ],
)
def test_batches_of_any_data_are_tried_on_two_workers(
    tmp_path: Path, kind: str, backend: str
) -> None:
    done = tuned(
        tmp_path,
        "batch",
        SCRIPT,
        kind,
        flags=("-n", 2, "--most", 48, "--steps", 3),
        backend=backend,
    )
    result = found(done)
    tried = {one["batch"]: one for one in result["tried"]}
    assert result["own"] == 32
    # of a PyDataset whole batches count, of a pipeline all as whole
    assert (
        result["rows"]
        == {
            "arrays": 330,
            "split": 297,
            "rows": 320,
            "generator": None,
            "pipeline": 352,
            "loader": 330,
        }[kind]
    )
    assert {32, 48} <= set(tried)
    assert all(one["samples_per_second"] > 0 and one["peak_bytes"] > 1e7 for one in tried.values())
    assert result["largest"] == 48
    assert result["recommended"] in tried
    check_nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=pytest.mark.long) for name in BACKENDS],
)
def test_memory_that_really_ends_ends_the_growth_and_not_the_search(
    tmp_path: Path, backend: str
) -> None:
    # The script's own batch does not fit: it is halved until one does, and refined.
    limit = {"tensorflow": 4000, "torch": 4000, "jax": 5000}[backend]
    result = found(
        tuned(tmp_path, "batch", WIDE, limit, 32768, flags=("--steps", 3), backend=backend)
    )
    own, *others = result["tried"]
    assert own["batch"] == 32768
    assert own["for_memory"]
    assert "ran out of memory" in own["failed"]
    good = [one["batch"] for one in others if "failed" not in one]
    assert result["largest"] == max(good) >= 64
    above = [one["batch"] for one in result["tried"] if "failed" in one]
    assert min(above) <= result["largest"] * 1.2


@pytest.mark.slow
def test_the_batch_of_a_horovod_script_is_that_of_all_its_workers(tmp_path: Path) -> None:
    result = found(tuned(tmp_path, "batch", HOROVOD, flags=("-n", 2, "--most", 128, "--steps", 3)))
    assert result["own"] == 64
    assert {one["batch"] for one in result["tried"]} >= {64, 128}


def interrupted(folder: Path, steps: int, when: str, seconds: float) -> tuple[int, str, str]:
    """A search for a batch that gets SIGINT once a file of its results is there: its exit code and output, ``seconds`` later at most."""
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "syrtos", "tune", "batch", "--steps", str(steps), "--run-dir", "tuned", "train.py", "generator"]  # fmt: skip
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **ENV},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (folder / "tuned" / when).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    shown, said = process.communicate(timeout=seconds)
    return process.returncode, shown, said


@pytest.mark.slow
def test_ctrl_c_shows_the_trials_that_had_finished(tmp_path: Path) -> None:
    code, shown, said = interrupted(tmp_path, 3, "batch-64/output.txt", 20)
    assert code == 130
    assert "the script's own" in shown
    assert f"stopped by SIGINT (signal 2). Run directory: {tmp_path / 'tuned'}\n" in said


@pytest.mark.slow
def test_ctrl_c_ends_everything_in_seconds(tmp_path: Path) -> None:
    code, _, said = interrupted(tmp_path, 100_000, "batch-own/began.json", 10)
    assert code == 130
    assert "SIGINT" in said
    assert not list((tmp_path / "tuned").glob("batch-[0-9]*"))
