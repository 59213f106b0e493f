"""`syrtos verify`: a table of all that a step computes, on each backend, and no file of the user's changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SYRTOS = Path(sys.executable).parent / "syrtos"

# Uneven batches of 50 rows, a loss of the script's own, files of callbacks and of the script.
SCRIPT = """
import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.rand(50, 4).astype("float32")
y = x.sum(1, keepdims=True)

def root_mean_square(wanted, found):
    return keras.ops.sqrt(keras.ops.mean((wanted - found) ** 2))

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
model.compile("adam", loss=root_mean_square, metrics=["mae"])
saved = keras.callbacks.ModelCheckpoint("best.keras")
others = [keras.callbacks.CSVLogger("log.csv"), keras.callbacks.BackupAndRestore("backup")]
model.fit(x, y, batch_size=8, epochs=3, verbose=0, validation_data=(x, y), callbacks=[saved, *others])
loss, mae = model.evaluate(x, y, verbose=0)
print("of each row", (model.predict(x, batch_size=8, verbose=0) > y).shape)
model.save("model.keras")
open("history.csv", "a").write("2 batches")
print("weights", keras.models.load_model("best.keras", compile=False).count_params())
"""


@pytest.mark.parametrize(
    "backend",
    [
        "tensorflow",
        pytest.param("jax", marks=pytest.mark.long),
        pytest.param("torch", marks=pytest.mark.slow),
    ],
)
def test_a_script_is_compared_and_its_files_are_left_alone(tmp_path: Path, backend: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "model.keras").write_text("a model that was trained for a week")
    words = [str(SYRTOS), "verify", "-n", "3", "--json", "train.py"]
    env = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "weights 19" in done.stdout
    assert "of each row (50, 1)" in done.stdout  # a script goes on with its predictions
    functions = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [function["step"] for function in functions] == [
        "train_step",
        "test_step",
        "predict_step",
    ]
    for function in functions:
        assert function["rows"], function
        assert all(row["difference"] <= 1e-4 for row in function["rows"]), function
    compared = {
        (row["kind"], row["name"].removeprefix("sequential/"))
        for function in functions
        for row in function["rows"]
    }
    assert {
        ("gradient", "dense/kernel"),
        ("log", "loss"),
        ("log", "mae"),
        ("variable", "loss/total"),
        ("output", "1"),
    } <= compared
    assert sorted(os.listdir(tmp_path)) == ["history.csv", "model.keras", "train.py"]
    line = f"train.py:{SCRIPT[: SCRIPT.index('open(')].count(chr(10)) + 1}"
    assert f"{line}  open('history.csv', 'a')" in done.stderr
    assert (tmp_path / "model.keras").read_text() == "a model that was trained for a week"


@pytest.mark.needs("tensorflow")
def test_what_is_computed_on_gathered_rows_is_named(tmp_path: Path) -> None:
    """Rows of a batch that are sorted by their values have no share."""
    text = SCRIPT.replace(
        'keras.layers.Dense(3, "relu")', "keras.layers.Lambda(lambda x: keras.ops.sort(x, axis=0))"
    )
    (tmp_path / "train.py").write_text(text.split("model.save")[0])
    words = [str(SYRTOS), "verify", "--operations", "train.py"]
    line = text[: text.index("ops.sort")].count(chr(10)) + 1
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"in train.py, line {line}" in " ".join(done.stdout.split())
    assert "values are those of one process" in done.stdout
    assert "compared by themselves: none differ" in done.stdout
    assert "samples/s" not in done.stderr  # the summary of a run of two batches


WRONG_RULE = """
import keras
from syrtos.keras.tensorflow.partition.partitioner import TABLE, Value
right = TABLE.rule_of("Tanh")
def wrong(emitter, op, values):
    return [Value(each.tensor * 1.01, each.placement) for each in right(emitter, op, values)]
TABLE.rule_of = lambda kind, of=TABLE.rule_of: wrong if kind == "Tanh" else of(kind)
"""


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_an_operation_that_differs_is_named(tmp_path: Path) -> None:
    layer = 'keras.layers.Lambda(lambda x: keras.ops.tanh(x) * 2.0), keras.layers.Dense(3, "relu")'
    text = WRONG_RULE + SCRIPT.replace('keras.layers.Dense(3, "relu")', layer)
    (tmp_path / "train.py").write_text(text.split("loss, mae")[0])
    line = text[: text.index("ops.tanh")].count(chr(10)) + 1
    done = subprocess.run(
        [str(SYRTOS), "verify", "--operations", "--json", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    first = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    found = [row for row in first["rows"] if row["kind"] == "operation"]
    assert [row["name"] for row in found] == [f"Tanh in train.py, line {line}"]
    assert abs(found[0]["difference"] - 0.01) < 1e-4


def test_the_log_that_an_error_names_is_kept(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('x')")
    words = [str(SYRTOS), "verify", "train.py"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "nothing to compare" not in done.stderr
    logs = Path(done.stderr.split("Their outputs are in ")[1].split()[0])
    assert logs.is_relative_to(tmp_path)
    assert "ValueError: x" in (logs / "rank-0.log").read_text()
