"""Runs that are logged to trackers: a real MLflow server over SQLite, Weights & Biases offline, event files of TensorBoard, and a stand-in for a collector of
OpenTelemetry, which decodes what the real exporter sends (a real collector can't be installed from Python's registry)."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import environments
import pytest
from sdks import needs

import forking

ROOT = Path(__file__).resolve().parents[2]
PYTHON = environments.FOLDER / "trackers" / "bin" / "python"
SCRIPTS = Path(__file__).parent / "scripts"
TRAIN = """
import keras, numpy as np, time
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")
mine = [keras.callbacks.TensorBoard("mine"), keras.callbacks.CSVLogger("mine.csv")]
history = model.fit(x, x[:, :1], batch_size=32, epochs=4, verbose=0, callbacks=mine)
print(history.history["loss"], flush=True)
time.sleep(2)  # so that the machine is sampled
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """A server over SQLite; yields its address."""
    number = port()
    store = [
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    command = [
        str(PYTHON.with_name("mlflow")),
        "server",
        *store,
        "--host",
        "127.0.0.1",
        "--port",
        str(number),
        "--workers",
        "1",
    ]
    with (folder / "server.log").open("wb") as log:
        # Without its seven processes for jobs of its own, each of which imports MLflow.
        env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=env)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{number}/health", timeout=2).close()
                break
            time.sleep(0.3)
        yield f"http://127.0.0.1:{number}"
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """A stand-in for a collector; yields its address and the bodies that it was sent."""
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/metrics", bodies
    finally:
        server.shutdown()
        server.server_close()


def trained(folder: Path, *flags: str) -> list[float]:
    """A run in this folder; the losses of its epochs."""
    (folder / "train.py").write_text(TRAIN)
    command = forking.syrtos_run(
        folder / "run", 2, folder / "train.py", "--api-key", "geheim123", flags=flags
    )
    done = forking.run(
        command, {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def track(run_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`syrtos track` with the Python that has the trackers."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "WANDB_MODE": "offline"}
    command = [str(PYTHON), "-m", "syrtos", "track", str(run_dir), *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)


@needs("trackers")
def test_mlflow_and_wandb_have_what_a_run_logged(tmp_path: Path) -> None:
    losses = trained(tmp_path)
    with mlflow_server(tmp_path) as address:
        done = track(tmp_path / "run", f"mlflow:{address}", "wandb")
        assert done.returncode == 0, done.stderr
        again = track(
            tmp_path / "run", f"mlflow:{address}"
        )  # goes on with the same run, and logs nothing twice
        assert again.returncode == 0, again.stderr
        told = subprocess.run(
            [
                str(PYTHON),
                str(SCRIPTS / "tracked.py"),
                address,
                "train",
                str(tmp_path / "run" / "wandb"),
            ],
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout.strip().splitlines()[-1])
    assert found["status"] == "FINISHED"
    assert [value for _, value in found["epochs"]] == pytest.approx(losses)
    assert [step for step, _ in found["epochs"]] == [8, 16, 24, 32]
    assert found["wandb"] == pytest.approx(losses)
    assert found["artifacts"] == ["report.html"]
    assert found["params"]["workers"] == "2"
    assert found["params"]["arguments"] == "--api-key ******"
    assert any(name.startswith("system/rank 1") for name in found["metrics"])
    assert "geheim123" not in told.stdout
    assert found["wandb config"]["workers"] == 2


@needs("trackers")
def test_a_collector_of_opentelemetry_is_sent_gauges(tmp_path: Path) -> None:
    losses = trained(tmp_path)
    with collector() as (address, bodies):
        done = track(tmp_path / "run", f"otlp:{address}")
        assert done.returncode == 0, done.stderr
    decoded = subprocess.run(
        [str(PYTHON), "-c", DECODE],
        input=b"".join(len(body).to_bytes(4, "big") + body for body in bodies),
        capture_output=True,
        timeout=60,
    )
    found = json.loads(decoded.stdout)
    assert found["syrtos.epoch/loss"] == pytest.approx(losses[-1])
    assert found["syrtos.training.steps"] == 32
    assert found["syrtos.succeeded"] == 1


DECODE = """
import json, sys
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
data, found = sys.stdin.buffer.read(), {}
while data:
    size = int.from_bytes(data[:4], "big")
    request = ExportMetricsServiceRequest.FromString(data[4 : 4 + size])
    data = data[4 + size :]
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.gauge.data_points:
                    found[metric.name] = point.as_double or point.as_int
print(json.dumps(found))
"""


@needs("trackers")
def test_a_tracker_that_is_not_there_does_not_stop_the_others(tmp_path: Path) -> None:
    trained(tmp_path)
    done = track(tmp_path / "run", f"otlp:http://127.0.0.1:{port()}/v1/metrics", "jsonl")
    assert done.returncode == 2
    assert "The run was not logged to otlp:" in done.stderr
    assert (
        json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["ended"]
        == "finished"
    )


def test_event_files_and_lines_beside_the_scripts_own(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    losses = trained(tmp_path, "--track", "tensorboard", "--track", "jsonl")
    ours = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    ours.Reload()
    assert [event.value for event in ours.Scalars("epoch/loss")] == pytest.approx(losses)
    assert set(ours.Tags()["tensors"]) == {"parameters", "report"}
    theirs = EventAccumulator(str(tmp_path / "mine" / "train"))
    theirs.Reload()
    assert theirs.Tags()["tensors"]
    assert len((tmp_path / "mine.csv").read_text().splitlines()) == 5
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["epoch/loss"] for line in lines if "epoch/loss" in line] == pytest.approx(losses)
    assert (
        "geheim123"
        not in (tmp_path / "run" / "metrics.jsonl").read_text()
        + (tmp_path / "run" / "report.html").read_text()
    )
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_run_that_cannot_be_tracked_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    for words, says in (
        ("foo", "`--track` takes tensorboard, mlflow"),
        ("mlflow:http://me:geheim@host", "holds a user's name, a password or a query"),
    ):
        done = forking.run(
            forking.syrtos_run(
                tmp_path / "run", 1, tmp_path / "train.py", flags=["--track", words]
            ),
            {},
        )
        assert done.returncode == 2
        assert says in done.stderr
        assert "geheim" not in done.stderr
    assert not (tmp_path / "run").exists()
