"""Where the time of a run goes is what a stopwatch says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from syrtos.cli.summary import print_summary
from syrtos.report.summary import Tally, summarize
from syrtos.run_dir import RunDir

BIN = Path(sys.executable).parent
# Seconds by which two clocks may differ on a busy machine, which can stop a process between their readings. Tests of the clock alone
# (tests/unit/observe/test_clock.py) are exact.
SLACK = 0.5
FIT = """
import sys, time
import keras, numpy as np
from syrtos.observe.clock import process_age

class Slow(keras.callbacks.Callback):
    spent = 0.0
    def sleep(self, seconds):
        began = time.perf_counter()
        time.sleep(seconds)
        Slow.spent += time.perf_counter() - began
    def on_epoch_begin(self, epoch, logs=None):
        self.sleep(0.25)
    def on_epoch_end(self, epoch, logs=None):
        self.sleep(1.0)
    def on_train_batch_end(self, batch, logs=None):
        self.sleep(0.01)

x = np.random.default_rng(0).normal(size=(200, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
fits = 0.0
for _ in range(2):
    began = time.perf_counter()
    model.fit(x, x.sum(1), batch_size=20, epochs=2, validation_data=(x, x.sum(1)), verbose=0,
              callbacks=[Slow(), keras.callbacks.ModelCheckpoint(sys.argv[1] + "/model.keras")])
    fits += time.perf_counter() - began
began = time.perf_counter()
model.evaluate(x, x.sum(1), verbose=0)
time.sleep(1.0)
print(f"fits {fits} callbacks {Slow.spent} age {process_age()}", flush=True)
"""
LOOP = """
import sys, time
import keras, numpy as np, tensorflow as tf

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1))).batch(8)
loss_fn = keras.losses.MeanSquaredError()

def trainer(wrap):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.01)
    @wrap
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return step

for step in (trainer(tf.function), trainer(lambda function: function)):
    for epoch in range(2):
        for batch in data:
            step(*batch)
        time.sleep(1.0)
"""


def run(folder: Path, text: str) -> tuple[str, str]:
    script = folder / "script.py"
    script.write_text(text)
    command = [
        str(BIN / "syrtos"),
        "run",
        "-n",
        "2",
        "--oversubscribe",
        "--run-dir",
        str(folder / "run"),
    ]
    done = subprocess.run(
        [*command, str(script), str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout, done.stderr


def tally(folder: Path, rank: int) -> Tally:
    found = Tally()
    for line in RunDir(folder / "run").ledger(rank).read_text().splitlines():
        found.add(json.loads(line))
    return found


@pytest.mark.slow
def test_all_time_of_a_run_is_accounted_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, _ = run(tmp_path, FIT)
    fits, callbacks, age = (
        float(number) for number in re.findall(r"[\d.]+", said.splitlines()[-1])
    )
    mine, summary = tally(tmp_path, 0), summarize(tmp_path / "run")

    launcher = json.loads(RunDir(tmp_path / "run").launcher.read_text())
    wall = launcher["ended"] - launcher["began"]
    for rank in (0, 1):
        assert sum(tally(tmp_path, rank).complete_seconds(launcher).values()) == pytest.approx(
            wall, abs=SLACK
        )
    assert age - SLACK <= mine.total <= wall + SLACK

    assert mine.training == pytest.approx(fits, abs=SLACK)
    assert callbacks - SLACK <= mine.seconds["callbacks"] <= callbacks + fits * 0.1 + SLACK
    assert mine.seconds["checkpoint"] > 0
    assert mine.seconds["evaluation"] > 0
    assert mine.seconds["script"] >= 1.0
    assert (summary.steps, summary.loops) == (40, False)
    assert 800 / summary.samples_per_second == pytest.approx(fits, abs=SLACK)
    print_summary(tmp_path / "run", full=True)
    shown = re.search(r"callbacks +([\d.]+)%", capsys.readouterr().err)
    assert shown
    assert float(shown[1]) == pytest.approx(summary.shares["callbacks"] * 100, abs=0.06)


@pytest.mark.slow
def test_loops_of_the_scripts_own_have_steps_and_a_summary(tmp_path: Path) -> None:
    _, screen = run(tmp_path, LOOP)
    assert "32 updates of the script's own loop" in screen
    for rank in (0, 1):
        mine = tally(tmp_path, rank)
        assert mine.steps == mine.loop_steps == 32
        assert (
            mine.seconds["rest"] + mine.seconds["script"] >= 4.0
        )  # it sleeps, between the loops too
        assert mine.seconds["trace"] > 0
        assert mine.seconds["compute"] > 0
        assert mine.training >= 3.0
