"""`--profile` and Horovod's timeline: one trace of all workers, on one clock."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import forking

TRAIN = """
import keras, numpy as np
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(640, 16)).astype("float32")
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, x[:, :1], batch_size=64, epochs=3, verbose=0)
print(history.history["loss"])
"""
HOROVOD = """
import sys
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
hvd.start_timeline(sys.argv[1])
weights = tf.Variable(tf.ones((1000,)))
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weights**2)
    gradient, = hvd.DistributedGradientTape(tape).gradient(loss, [weights])
    weights.assign_sub(0.1 * gradient)
hvd.stop_timeline()
"""
ENV = {"TF_CPP_MIN_LOG_LEVEL": "3"}


def events(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    found = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    names = {
        (each["pid"], each.get("tid")): each["args"]["name"] for each in found if each["ph"] == "M"
    }
    return [
        {**each, "track": names[each["pid"], each["tid"]]} for each in found if each["ph"] == "X"
    ]


def run(
    folder: Path,
    script: str,
    *words: object,
    backend: str = "tensorflow",
    flags: tuple[str, ...] = (),
) -> str:
    (folder / "train.py").write_text(script)
    command = forking.syrtos_run(folder / "run", 2, folder / "train.py", *words, flags=flags)
    done = forking.run(command, {**ENV, "KERAS_BACKEND": backend})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


TIMED = (pytest.mark.slow, pytest.mark.timing)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "backend",
    ["tensorflow", pytest.param("torch", marks=TIMED), pytest.param("jax", marks=TIMED)],
)
def test_a_profile_has_all_workers_on_one_clock(tmp_path: Path, backend: str) -> None:
    run(tmp_path, TRAIN, backend=backend, flags=("--profile", "steps=12:16"))
    found = events(tmp_path / "run" / "trace.json.gz")
    steps = {
        rank: [each for each in found if each["track"] == "steps" and each["pid"] == rank]
        for rank in (0, 1)
    }
    assert (
        [each["name"] for each in steps[0]]
        == [each["name"] for each in steps[1]]
        == [f"step {n}" for n in range(13, 17)]
    )
    for mine, theirs in zip(
        steps[0], steps[1], strict=True
    ):  # a step ends where workers agree to go on
        assert abs(mine["ts"] + mine["dur"] - theirs["ts"] - theirs["dur"]) < 20_000
    begin, end = steps[0][0]["ts"], steps[0][-1]["ts"] + steps[0][-1]["dur"]
    agreements = [each for each in found if each["track"] == "agreement"]
    assert {"stop training?"} <= {each["name"] for each in agreements}
    theirs = [
        each
        for each in found
        if each["track"] not in ("steps", "worker", "exchange", "agreement", "input and update")
    ]
    assert {each["pid"] for each in theirs} == {0, 1}
    assert any(begin < each["ts"] < end for each in theirs), (
        "the framework's profiler has a clock of its own"
    )
    if backend == "tensorflow":
        assert any(
            each["name"].startswith("gradients: 4 tensors")
            for each in found
            if each["track"] == "exchange"
        )


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_profile_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    assert run(tmp_path / "with", TRAIN, flags=("--profile", "steps=2:28")) == run(
        tmp_path / "without", TRAIN
    )


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_horovods_timeline(tmp_path: Path) -> None:
    run(tmp_path, HOROVOD, tmp_path / "timeline.json")
    found = events(tmp_path / "timeline.json")
    for rank in (0, 1):
        names = [
            each["name"] for each in found if each["pid"] == rank and each["track"] == "agreement"
        ]
        assert sum(name.startswith("exchange float32 1000") for name in names) == 3


JOINED = """
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
weights = tf.Variable(tf.ones((10,)))
optimizer = tf.keras.optimizers.SGD(0.1)
for _ in range(12 if hvd.rank() == 0 else 5):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weights**2)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, [weights])
    optimizer.apply_gradients(zip(gradients, [weights]))
hvd.join()
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("steps", ["3:7", pytest.param("8:100", marks=pytest.mark.long)])
def test_workers_that_make_different_numbers_of_steps(tmp_path: Path, steps: str) -> None:
    """They meet at the end of the script, also where one of them has recorded nothing."""
    run(tmp_path, JOINED, flags=("--profile", f"steps={steps}"))
    found = events(tmp_path / "run" / "trace.json.gz")
    ranks = {each["pid"] for each in found}
    assert ranks == ({0, 1} if steps == "3:7" else {0})


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_steps_that_are_executed_as_one(tmp_path: Path) -> None:
    script = TRAIN.replace('"mse")', '"mse", steps_per_execution=5)')
    run(tmp_path, script, flags=("--profile", "steps=7:9"))
    found = events(tmp_path / "run" / "trace.json.gz")
    assert {each["name"] for each in found if each["track"] == "steps"} == {"steps 6 to 10"}
