"""Parameter servers when something goes wrong: whose work is lost, who goes on, what is left behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from running import SCRIPTS, Run, run

SERVED = SCRIPTS / "served.py"
# Batches of an epoch, and epochs after the first fit, in `served.py`.
BATCHES, EPOCHS = 64, 2
ALL = BATCHES * (1 + EPOCHS)


def served(folder: Path, what: str, *flags: str, workers: int = 3, forked: bool = True) -> Run:
    flags = ("-n", str(workers), "--oversubscribe", "--timeout", "60", *flags)
    return run(folder, *flags, SERVED, what, folder, within=300.0, forked=forked)


def seen(folder: Path) -> dict[int, dict[str, Any]]:
    return {int(path.name): json.loads(path.read_text()) for path in folder.glob("[0-9]")}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", [3, pytest.param(2, marks=pytest.mark.long)])
def test_every_batch_is_taken_once_and_all_end_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    if version == 2:
        monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    ended = served(tmp_path, "nothing", "--ps", "2")
    assert ended.code == 0, ended.stderr + ended.logs
    workers = seen(tmp_path)
    assert sum(worker["steps"] for worker in workers.values()) == BATCHES * EPOCHS
    assert min(worker["steps"] for worker in workers.values()) >= EPOCHS
    for worker in workers.values():
        assert worker["updates"] == ALL
        assert [worker[k] for k in ("weights", "evaluated", "history")] == [
            workers[0][k] for k in ("weights", "evaluated", "history")
        ]
    assert (
        workers[0]["history"]["loss"][-1] < workers[0]["history"]["loss"][0] < 1.0
    )  # of a variance of about 8
    ended.check_nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("killed", "rank 1 was ended by SIGKILL (signal 9)"),
        pytest.param("error", "rank 1 ended with exit code 1", marks=pytest.mark.long),
        pytest.param("vanished", "rank 1 ended with exit code 0", marks=pytest.mark.long),
    ],
)
def test_a_worker_that_dies_costs_its_own_work_only(tmp_path: Path, what: str, said: str) -> None:
    ended = served(tmp_path, what, "--ps", "2", forked=False)
    assert ended.code == 0, ended.stderr + ended.logs
    assert (
        f"{said} before its script had come to its end. Its last batch is lost; the others go on."
        in ended.stderr
    )
    if what == "error":
        assert "this worker gives up" in ended.log(1)
    workers = seen(tmp_path)
    assert sorted(workers) == [0, 2]
    # Its five batches were applied before it died; at most the one that it had taken by then is lost.
    assert all(worker["updates"] in (ALL - 1, ALL) for worker in workers.values())
    assert workers[0]["weights"] == workers[2]["weights"]
    ended.check_nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_slow_worker_holds_up_nobody(tmp_path: Path) -> None:
    """Rank 1 sleeps in each step. Together all wait for it in each; at their own pace it just takes fewer."""
    took = {}
    for flags in (("--ps", "1"), ("--ps", "1", "--staleness", "0")):
        folder = tmp_path / str(len(flags))
        folder.mkdir()
        ended = served(folder, "slow", *flags, workers=2)
        assert ended.code == 0, ended.stderr + ended.logs
        took[flags] = seen(folder)
    own, together = took.values()
    assert own[1]["steps"] < own[0]["steps"] / 2
    assert together[1]["steps"] == BATCHES * EPOCHS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_staleness_bounds_how_far_a_worker_is_ahead(tmp_path: Path) -> None:
    ended = served(tmp_path, "slow", "--ps", "2", "--staleness", "3", workers=2)
    assert ended.code == 0, ended.stderr + ended.logs
    workers = seen(tmp_path)
    ahead = workers[0]["steps"] - workers[1]["steps"]
    # Three updates, and the one under way, in each of the epochs.
    assert 0 < ahead <= 4 * EPOCHS, ahead


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flags", [pytest.param((), marks=pytest.mark.long), ("--staleness", "0")])
@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("killed by rank 0", 128 + signal.SIGKILL),
        pytest.param("vanished rank 0", 1, marks=pytest.mark.long),
    ],
)
def test_rank_0_ends_the_run(tmp_path: Path, what: str, code: int, flags: tuple[str, ...]) -> None:
    ended = served(tmp_path, what, "--ps", "1", *flags, workers=2, forked=False)
    assert ended.code == code, ended.stderr
    assert "rank 0 on" in ended.stderr
    ended.check_nothing_left()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ctrl_c(tmp_path: Path) -> None:
    flags = ("-n", "2", "--oversubscribe", "--ps", "1")
    started = Run(tmp_path, *flags, SCRIPTS / "training.py", "forever")
    started.until_exist("begun-0", "begun-1", within=300.0)
    started.send(signal.SIGINT)
    assert started.ends(within=15.0).code == 130
    started.check_nothing_left()


def test_staleness_without_servers(tmp_path: Path) -> None:
    ended = run(tmp_path, "-n", "1", "--staleness", "2", SERVED, "nothing", tmp_path)
    assert ended.code == 2
    assert "`staleness`" in ended.stderr
