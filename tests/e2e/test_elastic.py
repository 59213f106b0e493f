"""The number of workers changes while a run goes on: the result is that of one worker, but for the rounding of sums."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import netns
import numpy as np
import pytest

import forking

SYRTOS = Path(sys.executable).with_name("syrtos")
ELASTIC = Path(__file__).parents[1] / "faults" / "scripts" / "elastic.py"
LONG = 300.0
PAUSE = 0.2
STEPS = 14 * (6 + 2)


def steps(folder: Path) -> list[int]:
    """The number of workers in each step so far, with those that were made again."""
    path = folder / "steps.txt"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def trained(folder: Path, *arguments: str, backend: str) -> None:
    """Trains on one worker, to its end."""
    words = forking.syrtos_run(
        folder.with_name("one"), 1, ELASTIC, folder, *arguments, flags=("--max-restarts", "0")
    )
    done = forking.run(words, {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}, timeout=LONG)
    assert done.returncode == 0, done.stderr


def check_alike(one: Path, other: Path) -> None:
    """Weights, histories and log, up to the rounding of sums."""
    first, second = (dict(np.load(folder / "weights.npz")) for folder in (one, other))
    for name in first:
        np.testing.assert_allclose(second[name], first[name], atol=1e-5)
    found, expected = (json.loads((folder / "results.json").read_text()) for folder in (other, one))
    assert found[2] == expected[2]
    for history, wanted in zip(found[:2], expected[:2], strict=True):
        assert history.keys() == wanted.keys()
        for name in wanted:
            np.testing.assert_allclose(history[name], wanted[name], atol=1e-5)
    logs = [
        np.genfromtxt(folder / "log.csv", delimiter=",", skip_header=1) for folder in (one, other)
    ]
    np.testing.assert_allclose(logs[1], logs[0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("backend", "data"),
    [
        ("tensorflow", "planned"),
        pytest.param("jax", "arrays", marks=pytest.mark.long),
        pytest.param("torch", "arrays", marks=pytest.mark.long),
    ],
)
def test_a_run_gets_another_number_of_workers(tmp_path: Path, backend: str, data: str) -> None:
    trained(tmp_path / "alone", data, backend=backend)
    env = {**os.environ, "KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}
    folder, run_dir = tmp_path / "resized", tmp_path / "run"
    command = [
        SYRTOS,
        "run",
        "-n",
        "2",
        "--oversubscribe",
        "--run-dir",
        run_dir,
        ELASTIC,
        folder,
        data,
        PAUSE,
    ]
    process = subprocess.Popen(list(map(str, command)), env=env, stderr=subprocess.PIPE, text=True)
    for workers in (1, 3):
        count = len(steps(folder))
        until(lambda count=count: len(steps(folder)) > count + 7)
        subprocess.run([SYRTOS, "resize", run_dir, "-n", str(workers)], check=True, timeout=60)
        until(lambda workers=workers: steps(folder)[-1:] == [workers])
    (folder / "hurry").touch()
    _, said = process.communicate(timeout=LONG)
    assert process.returncode == 0, said
    assert "The run is to have 1 worker in the place of 2. Generation 2 goes on from step" in said
    assert [size for size, _ in itertools.groupby(steps(folder))] == [2, 1, 3]
    assert re.search(r"restarts +2:", said)
    check_alike(tmp_path / "alone", folder)


OF_ITS_SIZE = """
import time, keras, numpy as np, syrtos
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
pause = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: (time.sleep(0.1), open("steps.txt", "a").write(f"{syrtos.size()}\\n")))
x = np.ones((160, 4), "float32")
syrtos.init()
model.fit(x, x[:, :1], batch_size=8 * syrtos.size(), epochs=20, verbose=0, callbacks=[pause])
"""


@pytest.mark.slow
def test_batches_that_depend_on_the_number_of_workers_are_no_others_in_silence(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(OF_ITS_SIZE)
    command = [str(SYRTOS), "run", "-n", "1", "--run-dir", "run", "train.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    until(lambda: len(steps(tmp_path)) > 45)
    subprocess.run(
        [str(SYRTOS), "resize", str(tmp_path / "run"), "-n", "2"], check=True, timeout=60
    )
    _, said = process.communicate(timeout=LONG)
    assert process.returncode == 1
    assert "the script makes other batches than before" in said


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hosts_come_and_go(tmp_path: Path) -> None:
    trained(tmp_path / "alone", "arrays", backend="tensorflow")
    folder, listed = tmp_path / "elastic", tmp_path / "hosts.txt"
    listed.write_text("node-a:1\n")
    with netns.two_hosts_or_skip("1gbit") as hosts:
        flags = [
            "--min-workers",
            "1",
            "--discover",
            f"cat {listed}",
            "--ssh",
            f"{hosts.ssh_wrapper} -p 22",
        ]
        command = [
            SYRTOS,
            "run",
            *flags,
            "--run-dir",
            tmp_path / "run",
            ELASTIC,
            folder,
            "arrays",
            PAUSE,
        ]
        process = hosts.start(list(map(str, command)), env={"OMP_NUM_THREADS": "1"})
        until(lambda: len(steps(folder)) > 5)
        listed.write_text("node-a:1\nnode-b:1\n")
        until(lambda: steps(folder).count(2) > 5)
        os.kill(hosts.first_pids[1], signal.SIGKILL)
        until((tmp_path / "run" / "generation-3").exists)
        (folder / "hurry").touch()
        _, said = process.communicate(timeout=LONG)
    assert process.returncode == 0, said
    assert (
        "There are slots for 2 workers now, and 1 trained. Generation 2 goes on from step" in said
    )
    assert [size for size, _ in itertools.groupby(steps(folder))] == [1, 2, 1]
    check_alike(tmp_path / "alone", folder)
