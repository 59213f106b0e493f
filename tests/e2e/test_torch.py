"""Keras on torch: what a user expects of a run, each checked by every worker from inside, and how a run ends."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import registry
from backends import SCRIPTS, check, run, run_checks

from named_checks import CheckedRun

pytestmark = pytest.mark.needs("torch")

# By script.
COMPARED = {
    "behaviours": ["everything", "data_loaders", "synchronized_statistics"],
    "own_steps": [
        "own_step",
        "own_loop",
        "hooks_and_buffers",
        "optimizers_elsewhere",
        "gradients_read_later",
        "guarded",
        "shared_seeds",
        "noise_for_gradients",
    ],
}
CHECKS = [
    "torch_modules", "predicted_arrays",
    "compiled_steps", "native_api", "added_sum", "refused", "generators_and_steps", "planned_data", "different_weights", "different_data",
    "resumed_with_accumulation", "early_gradients", "errors_in_backward", "frozen_parameters", "files", "learning_rate_and_early_stopping",
]  # fmt: skip

LOOPS = ["of_keras", "of_torch", "adversarial", "two_loaders", "odd_batches", "steps_inside", "prefetched", "not_split"]  # fmt: skip
# Of small models too, some gradients travel while others are made.
SMALL_BUCKETS = ("--bucket-mb", "0.001")


def compare(folder: Path, workers: int, of: str, *flags: str) -> None:
    names = COMPARED[of]
    check("torch", 1, folder / "1", *names, of=of)
    check(
        "torch",
        workers,
        folder / "several",
        *names,
        flags=("--sync-batchnorm", *SMALL_BUCKETS, *flags),
        of=of,
    )
    for name in names:
        one, several = (dict(np.load(folder / which / f"{name}.npz")) for which in ("1", "several"))
        for key in one:
            np.testing.assert_allclose(
                one[key], several[key], rtol=1e-5, atol=2e-6, err_msg=f"{name}: {key}"
            )


@pytest.mark.parametrize("of", COMPARED)
def test_workers_compute_what_one_process_computes(tmp_path: Path, of: str) -> None:
    compare(tmp_path, 2, of)


@pytest.fixture(scope="module")
def loops_of_one(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return run("torch", 1, tmp_path_factory.mktemp("one"), SCRIPTS / "torch_loops.py").stdout.split(
        "\n"
    )


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_loop_over_a_data_loader_is_split(
    loops_of_one: list[str], tmp_path: Path, workers: int
) -> None:
    done = run("torch", workers, tmp_path, SCRIPTS / "torch_loops.py")
    lines = done.stdout.split("\n")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["name"] for line in lines[:-1]] == LOOPS
    for one, several in zip(
        map(json.loads, loops_of_one[:-1]), map(json.loads, lines), strict=False
    ):
        for key in one.keys() - {"name"}:
            np.testing.assert_allclose(one[key], several[key], rtol=1e-6, err_msg=one["name"])


@pytest.fixture(scope="module")
def two_workers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CheckedRun:
    names = registry.chosen(request, "test_what_a_user_expects")
    return run_checks(
        "torch", 2, tmp_path_factory.mktemp("torch") / "2", names or CHECKS, SMALL_BUCKETS
    )


@pytest.mark.parametrize("name", CHECKS)
def test_what_a_user_expects(two_workers: CheckedRun, name: str) -> None:
    two_workers.check(name)


def test_what_a_user_is_told(two_workers: CheckedRun) -> None:
    assert "jit_compile=True is turned off" in two_workers.done.stderr
    assert "is not split" not in two_workers.done.stderr


@pytest.mark.long
@pytest.mark.parametrize("of", COMPARED)
def test_three_workers_compute_what_one_process_computes(tmp_path: Path, of: str) -> None:
    compare(tmp_path, 3, of)


@pytest.mark.slow
@pytest.mark.parametrize("of", ["behaviours", pytest.param("own_steps", marks=pytest.mark.long)])
def test_collectives_of_torch_compute_the_same(tmp_path: Path, of: str) -> None:
    compare(tmp_path, 2, of, "--exchange", "framework")
    ledger = (tmp_path / "several" / "run" / "ledger" / "rank-0.jsonl").read_text()
    assert '"exchange": "torch gloo"' in ledger


@pytest.mark.long
def test_batches_per_worker(tmp_path: Path) -> None:
    check("torch", 2, tmp_path / "2", "rows_of_each_worker", flags=("--batch", "per-worker"))


@pytest.mark.long
def test_learning_rate_warms_up(tmp_path: Path) -> None:
    check(
        "torch",
        2,
        tmp_path / "2",
        "warm_up",
        flags=("--scale-lr", "linear", "--warmup-epochs", "2"),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "rank", "code", "text"),
    [
        ("SIGKILL", 1, 128 + signal.SIGKILL, "rank 1 on .* was ended by SIGKILL"),
        ("raise", 1, 1, "RuntimeError: this rank fails"),
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
    done = run(
        "torch", 2, tmp_path, SCRIPTS / "backend_ends.py", how, rank, flags=("--timeout", "5")
    )
    assert done.returncode == code, done.stderr[-3000:]
    assert re.search(text, done.stderr), done.stderr[-3000:]


def test_servers_are_refused(tmp_path: Path) -> None:
    done = run("torch", 2, tmp_path, SCRIPTS / "backend_ends.py", "raise", 0, flags=("--ps", "1"))
    assert done.returncode == 1
    assert "`--ps` has no meaning with KERAS_BACKEND=torch" in done.stderr
