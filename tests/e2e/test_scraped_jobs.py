"""A job on two instances as Prometheus sees it while it trains, and as CloudWatch's clients see it afterwards."""

from __future__ import annotations

import datetime
import time
import urllib.request
from pathlib import Path
from typing import Any

import boto3
import pytest
from prometheus_client.parser import text_string_to_metric_families

from syrtos_jobs.client.estimator import Estimator
from syrtos_jobs.http.page import token
from syrtos_jobs.http.server import Server
from syrtos_jobs.store.home import Home

pytestmark = pytest.mark.slow

GROUP = "/aws/sagemaker/TrainingJobs"
TRAINING = """
import os, time
import keras, numpy as np

class WaitsToBeSeen(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        until = time.monotonic() + 120  # then the test has failed
        while epoch == 1 and not os.path.exists(os.environ["SM_HP_GO_ON"]) and time.monotonic() < until:
            time.sleep(0.1)

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x.sum(1), batch_size=8, epochs=3, callbacks=[WaitsToBeSeen()], verbose=2)
"""


def scraped(server: Server) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by name and labels' values."""
    headers = {"Authorization": f"Bearer {token(server.service.home)}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{server.url}/metrics", headers=headers)
    ) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, {})[(*sample.labels.values(),)] = sample.value
    return found


def until(server: Server, true: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        record = server.service.store.get("job")
        assert record is not None
        assert not record.failure
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_job_that_trains(tmp_path: Path) -> None:
    server = Server(Home(tmp_path / "home"), capacity=3)
    server.start()
    home, store = server.service.home, server.service.store
    try:
        script = tmp_path / "train.py"
        script.write_text(TRAINING)
        seen = tmp_path / "seen"
        estimator = Estimator(
            script, home=home.path, instance_count=2, hyperparameters={"go-on": str(seen)}
        )
        estimator.create(server.service, job_name="job")
        two_epochs = {("job",): 16.0}
        until(server, lambda: scraped(server).get("syrtos_training_steps_total") == two_epochs)
        until(server, lambda: len(scraped(server).get("syrtos_host_cpu_percent", ())) == 2)
        found = scraped(server)
        assert 0 < found["syrtos_metric"]["loss", "job"] < 100
        assert {rank for rank, _ in found["syrtos_worker_memory_bytes"]} == {"0", "1"}
        assert (found["syrtos_slots"][()], found["syrtos_slots_used"][()]) == (3, 2)
        assert found["syrtos_jobs"]["InProgress",] == 1
        seen.touch()
        until(server, lambda: (record := store.get("job")) is not None and record.state.final)
        assert scraped(server)["syrtos_jobs"]["Completed",] == 1
        assert "syrtos_training_steps_total" not in scraped(server)
        check_cloudwatch(server)
    finally:
        for record in store.active():
            server.service.stop_training_job({"TrainingJobName": record.name})
        until(server, lambda: not store.active())
        server.close()


def check_cloudwatch(server: Server) -> None:
    access, secret = server.service.home.keys()
    keys: Any = {
        "aws_access_key_id": access,
        "aws_secret_access_key": secret,
        "region_name": "us-west-2",
    }
    cloudwatch = boto3.client("cloudwatch", endpoint_url=server.url, **keys)
    listed = [
        (m["Dimensions"][0]["Value"], m["MetricName"])
        for m in cloudwatch.list_metrics(Namespace=GROUP)["Metrics"]
    ]
    instances = [
        (f"job/algo-{k}", name) for k in (1, 2) for name in ("CPUUtilization", "MemoryUtilization")
    ]
    assert [pair for pair in listed if not pair[1].startswith("GPU")] == [
        ("job", "loss"),
        *instances,
    ]
    now = datetime.datetime.now(datetime.UTC)
    for metric, count in (("loss", 3), ("CPUUtilization", None)):
        (dimensions,) = [
            m["Dimensions"]
            for m in cloudwatch.list_metrics(MetricName=metric)["Metrics"]
            if "algo-2" not in str(m)
        ]
        asked = {"Namespace": GROUP, "MetricName": metric, "Dimensions": dimensions, "Period": 3600}
        times = {
            "StartTime": now - datetime.timedelta(hours=1),
            "EndTime": now + datetime.timedelta(minutes=1),
        }
        points = cloudwatch.get_metric_statistics(
            **asked, **times, Statistics=["SampleCount", "Average"]
        )["Datapoints"]
        assert count is None or sum(point["SampleCount"] for point in points) == count
        assert all(point["Average"] > 0 for point in points)
