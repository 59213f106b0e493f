"""`--compress` and `--sync-every`: what is sent, what is learnt, and what stays as promised."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import netns
import pytest

import forking

SYRTOS = Path(sys.executable).with_name("syrtos")
SCRIPT = Path(__file__).parent / "scripts" / "slow_network.py"
# With so many times the loss, after 176 steps, of gradients that are exchanged as they are.
WAYS = {
    "--compress bf16": 1.02,
    "--compress fp16": 1.02,
    "--compress powersgd:2": 1.25,
    "--sync-every 8": 1.25,
}
SOME = ["tensorflow", pytest.param("torch", marks=pytest.mark.long)]
ENV = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
pytestmark = pytest.mark.slow


def train(
    folder: Path, way: str, *words: object, backend: str = "tensorflow", workers: int = 2
) -> Any:
    command = forking.syrtos_run(folder / "run", workers, SCRIPT, *words, flags=way.split())
    return _result(forking.run(command, {**ENV, "KERAS_BACKEND": backend}))


def _result(done: Any) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line[:1] in "[{0123456789"))


@pytest.fixture(
    scope="module", params=["tensorflow", pytest.param("torch", marks=pytest.mark.long)]
)
def learnt(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[float]]:
    """A backend, and the validation losses of three seeds where gradients are exchanged as they are."""
    return request.param, train(
        tmp_path_factory.mktemp("plain"), "", "digits", backend=request.param
    )


@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.long) for way in WAYS])
def test_as_much_is_learnt(tmp_path: Path, learnt: tuple[str, list[float]], way: str) -> None:
    """In the mean of three seeds."""
    backend, exact = learnt
    assert sum(train(tmp_path, way, "digits", backend=backend)) <= WAYS[way] * sum(exact)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("way", "backend"),
    [
        ("--sync-every 3 --compress powersgd:1", "torch"),
        pytest.param("--sync-every 32", "tensorflow", marks=pytest.mark.long),
        pytest.param("--sync-every 4:1:0.9", "torch", marks=pytest.mark.long),
    ],
)
def test_after_a_kill_the_result_is_the_same(tmp_path: Path, way: str, backend: str) -> None:
    """What was not sent yet, and what the metrics began with, is in the snapshots; with 32, more than an epoch has, these are made at epochs' ends."""
    never = tmp_path / "never"
    never.touch()
    whole = train(tmp_path / "whole", way, "killed", never, backend=backend)
    assert train(tmp_path / "killed", way, "killed", tmp_path / "mark", backend=backend) == whole


@pytest.mark.parametrize("backend", SOME)
def test_metrics_count_all_samples_once(tmp_path: Path, backend: str) -> None:
    """A model that its optimizer never changes has the metrics of one process: where a worker has no sample of a batch, and where callbacks set weights,
    predict, evaluate or train another model within."""
    plain = _result(forking.run([SCRIPT, "not_trained"], {**ENV, "KERAS_BACKEND": backend}))
    apart = train(tmp_path, "--sync-every 4", "not_trained", backend=backend, workers=3)
    for name in plain:
        assert apart[name] == pytest.approx(plain[name], rel=1e-6), name


@pytest.mark.parametrize("backend", SOME)
def test_a_loop_of_the_scripts_own_exchanges_in_each_step(tmp_path: Path, backend: str) -> None:
    """Also where it has a list of callbacks, and after a `fit`, in which the optimizers became different."""
    command = forking.syrtos_run(tmp_path, 2, SCRIPT, "own_loop", flags=["--sync-every", "4"])
    done = forking.run(command, {**ENV, "KERAS_BACKEND": backend})
    first = _result(done)
    assert first["falls"]
    logged = (tmp_path / "logs" / "rank-1.log").read_text()
    assert json.loads(next(line for line in logged.splitlines() if line.startswith("{"))) == first


@pytest.mark.parametrize("backend", SOME)
def test_all_stop_at_the_next_meeting(tmp_path: Path, backend: str) -> None:
    assert train(tmp_path, "--sync-every 4", "stopped", backend=backend) == 12


@pytest.mark.parametrize(
    ("mode", "backend", "says"),
    [
        ("on_batch", "tensorflow", "calls `train_on_batch`"),
        pytest.param("on_batch", "torch", "calls `train_on_batch`", marks=pytest.mark.long),
        pytest.param("stopped", "jax", "on TensorFlow and torch", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_what_can_t_train_alone_is_refused(
    tmp_path: Path, mode: str, backend: str, says: str
) -> None:
    command = forking.syrtos_run(tmp_path, 2, SCRIPT, mode, flags=["--sync-every", "4"])
    done = forking.run(command, {**ENV, "KERAS_BACKEND": backend})
    assert done.returncode != 0
    assert says in done.stderr


# Of a gradient of four bytes a number; MPI and TCP add to it.
SENT = {
    "--compress bf16": (0.45, 0.6),
    "--compress powersgd:4": (0.0, 0.1),
    "--sync-every 8": (0.0, 0.2),
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "way", [way if "bf16" in way else pytest.param(way, marks=pytest.mark.long) for way in SENT]
)
def test_fewer_bytes_are_sent(way: str) -> None:
    """32 steps of 1M numbers between two hosts."""
    least, most = SENT[way]
    with netns.two_hosts_or_skip(None) as hosts:
        before = hosts.sent_bytes(0)
        options = [*hosts.flags(1), *way.split(), "--max-restarts", "0", "--check-every", "0"]
        done = hosts.run([str(SYRTOS), "run", *options, str(SCRIPT), "large"], env=ENV)
        assert done.returncode == 0, done.stderr
        sent = (hosts.sent_bytes(0) - before) / 1e6
    assert least < sent / (32 * 4) < most
