"""Keras on JAX: what a user expects of a run, each checked by every worker from inside, and how a run ends."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import registry
from backends import SCRIPTS, check, run, run_anew, run_checks
from registry import QUICK_XLA

from named_checks import CheckedRun
from syrtos.cli.summary import print_summary

pytestmark = pytest.mark.needs("jax")

CHECKS = [
    "one_program", "cleared_session", "generators_and_steps", "planned_data", "different_weights", "different_data", "steps_that_are_not_compiled",
    "rows_of_each_worker", "metric_made_in_a_step", "resumed_with_accumulation", "files",
    "learning_rate_and_early_stopping", "model_parallel", "devices_of_one_worker",
]  # fmt: skip

# A layer in float16, and another type elsewhere.
HALF = """
import keras, numpy as np

layers = [keras.Input((8,)), keras.layers.Dense(16, dtype="float16"), keras.layers.Dense(3)]
model = keras.Sequential(layers)
model.compile("sgd", "mse")
model.fit(np.ones((32, 8), "float32"), np.ones((32, 3), "float32"), batch_size=16, verbose=0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jax")


@pytest.fixture(scope="module")
def two_workers(request: pytest.FixtureRequest, folder: Path) -> CheckedRun:
    names = registry.chosen(request, "test_what_a_user_expects")
    return run_checks("jax", 2, folder / "2", list(dict.fromkeys(["one_program", *names])))


@pytest.mark.parametrize("name", CHECKS)
def test_what_a_user_expects(two_workers: CheckedRun, name: str) -> None:
    two_workers.check(name)


def test_workers_compute_what_one_process_computes(
    folder: Path, two_workers: CheckedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    check("jax", 1, folder / "1", "one_program")
    two_workers.check("one_program")
    one, two = (dict(np.load(folder / str(n) / "one_program.npz")) for n in (1, 2))
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-5, atol=2e-6, err_msg=name)
    done = two_workers.done
    assert "tracing" in done.stderr
    print_summary(folder / "2" / "run", full=True)
    shown = capsys.readouterr().err
    assert "compute + exchange" not in shown
    assert "not measured, at most" in shown
    assert "Gloo" not in done.stderr
    assert "recoverable" not in done.stderr


def test_every_exchange_of_xla_gives_what_one_device_computes(tmp_path: Path) -> None:
    done = run("jax", 3, tmp_path, SCRIPTS / "jax_exchanges.py", flags=("--exchange", "mpi"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "compared 91 of rank 0 of 3" in done.stdout


@pytest.mark.slow
def test_after_an_exchange_that_was_given_up_none_meets_the_wrong_one(tmp_path: Path) -> None:
    flags = ("--exchange", "mpi", "--timeout", "4")
    run("jax", 2, tmp_path, SCRIPTS / "jax_given_up.py", flags=flags)
    said = (tmp_path / "run" / "logs" / "rank-1.log").read_text()
    assert said.count("given up: ") == 2, said
    assert "has waited" in said
    assert "exchanged" not in said


@pytest.mark.slow
def test_gloo_and_mpi_reach_the_same_weights(
    folder: Path, two_workers: CheckedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """float16 is gloo's, unasked."""
    two_workers.check("one_program")
    by_gloo = run_checks("jax", 2, folder / "gloo", ["one_program"], ("--exchange", "framework"))
    by_gloo.check("one_program")
    print_summary(folder / "gloo" / "run", full=True)
    assert "compute + exchange" in capsys.readouterr().err
    mpi, gloo = (dict(np.load(folder / name / "one_program.npz")) for name in ("2", "gloo"))
    for name in mpi:
        np.testing.assert_allclose(mpi[name], gloo[name], rtol=1e-6, err_msg=name)
    half = folder / "half"
    half.mkdir()
    (half / "train.py").write_text(HALF)
    done = run("jax", 2, half, half / "train.py")
    assert done.returncode == 0, done.stderr[-3000:]
    refused = run("jax", 2, half, half / "train.py", flags=("--exchange", "mpi"))
    assert refused.returncode
    assert "add `--exchange framework`" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow"])
def test_flax_and_orbax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """`OrbaxCheckpoint` runs on all workers where JAX's processes meet in it; else on rank 0."""
    monkeypatch.setenv("KERAS_NNX_ENABLED", str(backend == "jax").lower())
    found = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        done = run_anew(backend, workers, folder, SCRIPTS / "flax_and_orbax.py", folder)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "epochs saved: ['1']" in done.stdout
        found.append(json.loads(done.stdout.split("found ")[1].splitlines()[0]))
    for name, values in found[0].items():
        np.testing.assert_allclose(found[1][name], values, rtol=1e-5, err_msg=name)


@pytest.mark.long
def test_learning_rate_warms_up(tmp_path: Path) -> None:
    done = run(
        "jax",
        2,
        tmp_path,
        SCRIPTS / "jax_behaviours.py",
        "warm_up",
        tmp_path,
        flags=("--scale-lr", "linear", "--warmup-epochs", "2"),
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.long
def test_a_long_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    check("jax", 2, tmp_path / "2", "cleared_session")


def test_tensorflow_need_not_be_installed(tmp_path: Path) -> None:
    done = run_anew("jax", 2, tmp_path, SCRIPTS / "jax_without_tensorflow.py", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "trained without TensorFlow" in done.stdout


@pytest.mark.long
def test_three_workers_compute_what_one_process_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")  # compiled as users do
    for workers in (1, 3):
        check("jax", workers, tmp_path / str(workers), "one_program")
    one, three = (dict(np.load(tmp_path / str(n) / "one_program.npz")) for n in (1, 3))
    for name in one:
        np.testing.assert_allclose(one[name], three[name], rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "others",
    [("planned_data",), pytest.param(("generators_and_steps", "files"), marks=pytest.mark.long)],
)
def test_workers_with_several_devices_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...]
) -> None:
    """As a worker that is alone on a host with several GPUs has them."""
    check("jax", 1, tmp_path / "1", "one_program")
    monkeypatch.setenv("XLA_FLAGS", f"{QUICK_XLA} --xla_force_host_platform_device_count=2")
    check("jax", 2, tmp_path / "2", "one_program", *others)
    one, two = (dict(np.load(tmp_path / str(n) / "one_program.npz")) for n in (1, 2))
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "rank", "code", "text"),
    [
        ("SIGKILL", 1, 128 + signal.SIGKILL, "rank 1 on .* was ended by SIGKILL"),
        pytest.param(
            "SIGKILL",
            0,
            128 + signal.SIGKILL,
            "rank 0 on .* was ended by SIGKILL",
            marks=pytest.mark.long,
        ),
        pytest.param("raise", 1, 1, "RuntimeError: this rank fails", marks=pytest.mark.long),
        pytest.param(
            "exit",
            1,
            1,
            "rank 1 on .* ended with exit code 0 before its script had come to its end",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "SIGSTOP",
            1,
            1,
            "rank 1 on .* did not come to an exchange, .* it is stopped, by SIGSTOP",
            marks=pytest.mark.long,
        ),
    ],
)
def test_one_worker_ends_the_run_within_seconds(
    tmp_path: Path, how: str, rank: int, code: int, text: str
) -> None:
    done = run("jax", 2, tmp_path, SCRIPTS / "backend_ends.py", how, rank, flags=("--timeout", "5"))
    assert done.returncode == code, done.stderr[-3000:]
    assert re.search(text, done.stderr), done.stderr[-3000:]


def test_options_without_a_meaning_are_refused(tmp_path: Path) -> None:
    done = run(
        "jax", 2, tmp_path, SCRIPTS / "backend_ends.py", "raise", 0, flags=("--batch", "per-worker")
    )
    assert done.returncode == 1
    assert "`--batch per-worker` has no meaning with KERAS_BACKEND=jax" in done.stderr
    assert "In a job a sharded channel asks for it" in done.stderr
