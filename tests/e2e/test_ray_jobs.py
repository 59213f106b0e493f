"""Runs in jobs of a real Ray cluster, and in trials of Ray Tune.

The cluster has one node: nodes of one machine would unpack the folder of a job in each other's place.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray_cluster
from ray_cluster import LONG, RayCluster

import syrtos

CPUS = 3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(ray_cluster.missing() is not None, reason=str(ray_cluster.missing())),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    if importlib.util.find_spec("aiohttp_cors") is None:
        pytest.skip("Ray's dashboard, which takes jobs, needs the package ray[default]")
    with ray_cluster.cluster(1, CPUS, dashboard=True) as started:
        yield started
        started.until_nothing_is_left()


def submitted(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Submits a job as soon as the cluster takes one, and waits for its end."""
    deadline = time.monotonic() + LONG
    env = {**os.environ, "RAY_ADDRESS": ""}
    while True:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=LONG, check=False
        )
        if (
            "No available agent to submit job" not in done.stdout + done.stderr
            or time.monotonic() > deadline
        ):
            return done
        time.sleep(1.0)


def test_a_job_brings_its_folder_along(cluster: RayCluster, tmp_path: Path) -> None:
    if (reason := cluster.why_no_jobs()) is not None:
        pytest.skip(reason)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "job.py").write_text(
        "import os, syrtos\nsyrtos.init()\nprint('in', os.getcwd(), syrtos.size())\n"
    )
    submit = (
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "job",
        "submit",
        "--address",
        cluster.dashboard,
    )
    run = (
        sys.executable,
        "-m",
        "syrtos",
        "run",
        "--on",
        "ray",
        "-n",
        "2",
        "--run-dir",
        str(tmp_path / "run"),
    )
    done = submitted([*submit, "--working-dir", str(folder), "--", *run, "job.py"])
    assert done.returncode == 0, done.stdout + done.stderr
    said = next(line for line in done.stdout.splitlines() if line.startswith("in "))
    assert "/working_dir_files/" in said
    assert said.endswith(" 2")


def test_a_trial_of_tune_has_workers_in_its_bundles(cluster: RayCluster, tmp_path: Path) -> None:
    missing = [
        name
        for name in ("pandas", "pyarrow", "tensorboardX")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: `pip install 'ray[tune]'`")
    tune: Any = importlib.import_module("ray.tune")

    def train(width: int) -> int:
        import keras
        import numpy

        model: Any = keras.Sequential([keras.layers.Dense(width), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(numpy.ones((64, 4)), numpy.ones(64), epochs=2, verbose=0)  # pyright: ignore[reportArgumentType]
        return syrtos.size()

    def trial(config: dict[str, Any]) -> None:
        workers = syrtos.ray.run(
            train, (config["width"],), workers=CPUS - 1, run_dir=tmp_path / "run"
        )
        (tmp_path / "workers").write_text(str(workers))

    resources = tune.PlacementGroupFactory([{"CPU": 1}] * CPUS)
    tuner = tune.Tuner(
        tune.with_resources(trial, resources),
        param_space={"width": 3},
        run_config=tune.RunConfig(storage_path=str(tmp_path / "tune")),
    )
    results = tuner.fit()
    assert not results.errors, results.errors
    assert (tmp_path / "workers").read_text() == str(CPUS - 1)
    frame = results[0].metrics_dataframe
    assert list(frame["epoch"]) == [1, 2]
    assert (frame["loss"] > 0).all()
