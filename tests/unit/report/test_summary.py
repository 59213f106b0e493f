"""What ledgers add up to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.observe.clock import KINDS
from syrtos.report.summary import SHARES, imported_before, summarize
from syrtos.run_dir import RunDir

Record = dict[str, Any]
seconds = st.floats(0, 100)


def step(
    wall: float = 1.0,
    *,
    wait: float = 0.0,
    phase: str = "train",
    steps: int = 1,
    samples: float = 8.0,
) -> Record:
    return {
        "phase": phase,
        "steps": steps,
        "samples": samples,
        "wall": wall,
        "wait": wait,
        "compute": wall - wait,
    }


def spent(phase: str, *, in_fit: bool = False, **kinds: float) -> Record:
    return {
        "phase": phase,
        "wall": sum(kinds.values()),
        **kinds,
        **({"in_fit": True} if in_fit else {}),
    }


def write(folder: Path, *ranks: list[Record], tail: str = "") -> Path:
    for rank, records in enumerate(ranks):
        path = RunDir(folder).ledger(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in records) + tail)
    return folder


@given(st.lists(st.tuples(st.sampled_from(["script", "fit", "train", "test"]), st.lists(seconds, min_size=len(KINDS), max_size=len(KINDS))),
                min_size=1, max_size=5))  # fmt: skip
def test_any_shares_add_up_to_all_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, list[float]]]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    records = [spent(phase, **dict(zip(KINDS, values, strict=True))) for phase, values in lines]
    summary = summarize(write(folder, records))
    assert tuple(summary.shares) == tuple(SHARES)
    assert sum(summary.shares.values()) == pytest.approx(
        1.0 if any(record["wall"] for record in records) else 0.0
    )
    assert summary.seconds == pytest.approx(sum(record["wall"] for record in records))


def test_three_long_callbacks_are_what_a_stopwatch_says(tmp_path: Path) -> None:
    """Steps of 1.9 s, callbacks of 30 s at the ends of epochs, 37 s in all."""
    steps = [step(0.1, samples=100.0) for _ in range(19)]
    records = [
        spent("script", start=1.0, rest=3.1),
        spent("fit", build=1.0),
        *steps,
        spent("fit", callbacks=30.0),
    ]
    summary = summarize(write(tmp_path, records))
    assert summary.seconds == pytest.approx(37.0)
    assert summary.shares["callbacks"] == pytest.approx(30 / 37)
    assert summary.shares["compute"] == pytest.approx(1.9 / 37)
    assert summary.samples_per_second == pytest.approx(1900 / 32.9)


def test_samples_are_of_all_workers_and_of_training(tmp_path: Path) -> None:
    mine = [step(4.0), step(2.0, steps=2, samples=16.0), step(100.0, phase="test"), step(2.0)]
    theirs = [step(4.0, samples=7.0), step(4.0, steps=3, samples=21.0)]
    summary = summarize(write(tmp_path, mine, theirs))
    assert (summary.workers, summary.steps) == (2, 4)
    assert summary.samples_per_second == pytest.approx((32 + 28) / 8)
    assert summary.steps_per_second == pytest.approx(4 / 8)


def test_validation_inside_of_fit_is_in_the_time_of_training(tmp_path: Path) -> None:
    records = [
        step(2.0),
        spent("test", in_fit=True, compute=1.0, wait=1.0),
        spent("test", compute=50.0),
    ]
    summary = summarize(write(tmp_path, records))
    assert summary.samples_per_second == pytest.approx(8 / 4)
    assert summary.shares["evaluation"] == pytest.approx(52 / 54)
    assert summary.shares["wait"] == 0.0


def test_at_their_own_pace_each_workers_steps_count(tmp_path: Path) -> None:
    facts = {"phase": "facts", "training": "asynchronous"}
    summary = summarize(write(tmp_path, [facts, step(2.0)], [facts, step(1.0), step(3.0)]))
    assert summary.steps == 3
    assert summary.samples_per_second == pytest.approx(24 / 4)


def test_a_loop_of_the_scripts_own_is_told_from_fit(tmp_path: Path) -> None:
    loop = {"phase": "loop", "steps": 1, "wall": 0.5, "compute": 0.25, "rest": 0.25}
    summary = summarize(
        write(tmp_path, [spent("script", rest=9.0), loop, loop, spent("script", rest=5.0)])
    )
    assert summary.loops
    assert (summary.steps, summary.samples_per_second, summary.steps_per_second) == (2, 0.0, 2.0)
    assert not summarize(write(tmp_path, [step(), step(), loop])).loops


def test_what_lies_before_and_after_a_workers_lines_is_the_runs(tmp_path: Path) -> None:
    write(
        tmp_path,
        [{"phase": "facts", "began": 101.0}, spent("script", start=1.0, rest=2.0), step(3.0)],
    )
    RunDir(tmp_path).launcher.write_text(json.dumps({"began": 100.0, "ended": 110.0}))
    summary = summarize(tmp_path)
    assert summary.seconds == pytest.approx(10.0)
    assert summary.shares["start"] == pytest.approx(0.2)
    assert summary.shares["script"] == pytest.approx(0.2)
    assert summary.shares["end"] == pytest.approx(0.3)
    assert summary.shares["rest"] == 0


def test_a_host_whose_clock_is_wrong_adds_no_time(tmp_path: Path) -> None:
    write(
        tmp_path,
        [{"phase": "facts", "began": 4000.0}, step(3.0)],
        [{"phase": "facts", "began": 1.0}, step(3.0)],
    )
    RunDir(tmp_path).launcher.write_text(json.dumps({"began": 100.0, "ended": 104.0}))
    summary = summarize(tmp_path)
    assert summary.seconds == pytest.approx(4.0)
    assert sum(summary.shares.values()) == pytest.approx(1.0)


def test_the_first_step_is_left_out_of_the_median(tmp_path: Path) -> None:
    summary = summarize(write(tmp_path, [step(60.0), step(0.1), step(0.4, steps=2), step(0.9)]))
    assert summary.step_ms == pytest.approx(200.0)


def test_all_ranks_share_in_the_shares(tmp_path: Path) -> None:
    shares = summarize(write(tmp_path, [step(3.0)], [step(1.0, wait=1.0)])).shares
    assert shares["compute"] == pytest.approx(0.75)
    assert shares["wait"] == pytest.approx(0.25)


def test_the_rank_that_waits_least_is_the_slowest(tmp_path: Path) -> None:
    summary = summarize(write(tmp_path, [step(wait=0.5)], [step(wait=0.1)], [step(wait=0.6)]))
    assert summary.skew is not None
    assert summary.skew[0] == 1
    assert summary.skew[1] == pytest.approx(0.3)


def test_one_worker_waits_for_nobody(tmp_path: Path) -> None:
    assert summarize(write(tmp_path, [step()])).skew is None


def test_a_rank_without_steps_is_not_the_slowest(tmp_path: Path) -> None:
    assert summarize(write(tmp_path, [step(wait=0.5)], [])).skew is None


def test_a_truncated_last_line_is_tolerated(tmp_path: Path) -> None:
    whole = [step(), step(), step()]
    summary = summarize(write(tmp_path, whole, tail=json.dumps(step())[:-9]))
    assert summary == summarize(write(tmp_path / "whole", whole))
    assert summary.steps == 3


def test_ranks_are_numbers(tmp_path: Path) -> None:
    ranks = [[step(wait=0.5)] for _ in range(12)]
    ranks[10] = [step()]
    skew = summarize(write(tmp_path, *ranks)).skew
    assert skew is not None
    assert skew[0] == 10


@pytest.mark.parametrize("ranks", [(), ([],), ([], [])])
def test_without_training_there_is_nothing_to_say(
    tmp_path: Path, ranks: tuple[list[Record], ...]
) -> None:
    summary = summarize(write(tmp_path, *ranks))
    assert (summary.steps, summary.samples_per_second, summary.step_ms) == (0, 0.0, 0.0)
    assert set(summary.shares.values()) == {0.0}


def test_time_outside_of_steps_is_no_step(tmp_path: Path) -> None:
    summary = summarize(write(tmp_path, [spent("fit", checkpoint=5.0)]))
    assert (summary.workers, summary.steps, summary.samples_per_second) == (1, 0, 0.0)
    assert summary.shares["checkpoint"] == 1.0


def test_half_a_line_of_a_killed_worker_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, [spent("fit", exchange=0.25)])
    with RunDir(tmp_path).ledger(0).open("a") as file:
        file.write(json.dumps(spent("fit", exchange=0.75)) + "\n" + json.dumps(step())[:-3])
    summary = summarize(tmp_path)
    assert (summary.shares["exchange"], summary.steps) == (1.0, 0)


def generation(folder: Path, began: float, ended: float, steps: int, trained: int = 0) -> Path:
    """20 s until its first step, steps of 1 s, and the rest until its end; without a ledger if it made no step."""
    if steps:
        facts = {"phase": "facts", "began": began, **({"trained": trained} if trained else {})}
        write(folder, [facts, spent("script", rest=20.0), *([step()] * steps)])
    RunDir(folder).launcher.parent.mkdir(parents=True, exist_ok=True)
    RunDir(folder).launcher.write_text(json.dumps({"began": began, "ended": ended}))
    return folder


def test_what_restarts_cost(tmp_path: Path) -> None:
    """The first dies after 100 steps, 5 s later that is noticed; the second goes on from step 90."""
    one, two = (
        generation(tmp_path / "1", 0, 125, 100),
        generation(tmp_path / "2", 125, 155, 10, trained=90),
    )
    summary = summarize(one, two)
    assert (summary.steps, summary.seconds) == (100, 155.0)
    restarts = summary.restarts
    assert (restarts.number, restarts.seconds, restarts.steps, restarts.step_seconds) == (
        1,
        25.0,
        10,
        10.0,
    )
    assert summary.goodput == pytest.approx(120 / 155)
    assert sum(summary.shares.values()) == pytest.approx(1.0)


def test_what_restarts_cost_is_not_known_where_no_launcher_could_write(tmp_path: Path) -> None:
    one = generation(tmp_path / "1", 0, 125, 100)
    two = generation(tmp_path / "2", 125, 155, 10, trained=90)
    assert summarize(one, two).restarts.are_recorded
    RunDir(one).launcher.write_text('{"began": 0}')  # a launcher that was killed
    assert summarize(one, two).restarts.are_recorded
    RunDir(two).launcher.unlink()
    assert not summarize(one, two).restarts.are_recorded


def test_a_generation_that_makes_no_step_costs_its_time_alone(tmp_path: Path) -> None:
    one, none = generation(tmp_path / "1", 0, 120, 100), generation(tmp_path / "2", 120, 128, 0)
    two = generation(tmp_path / "3", 128, 158, 10, trained=90)
    restarts = summarize(one, none, two).restarts
    assert (restarts.number, restarts.seconds, restarts.steps) == (2, 28.0, 10)
    given_up = summarize(one, none)
    assert (given_up.workers, given_up.steps, given_up.seconds) == (1, 100, 128.0)
    assert (given_up.restarts.seconds, given_up.restarts.steps) == (8.0, 0)
    begun_anew = summarize(none, one)
    assert (begun_anew.steps, begun_anew.restarts.steps) == (100, 0)


def test_a_run_that_begins_anew_computes_all_steps_again(tmp_path: Path) -> None:
    one, two = generation(tmp_path / "1", 0, 120, 100), generation(tmp_path / "2", 120, 240, 100)
    summary = summarize(one, two)
    assert (summary.steps, summary.restarts.steps, summary.goodput) == (100, 100, 0.5)


def test_the_import_of_another_process_is_importing_and_no_start_up(tmp_path: Path) -> None:
    """Of the seconds from 100 to 110 in which a worker's process did not exist yet, another one imported from 101 to 105, and so before this generation began
    for those of a later one."""
    assert imported_before({"imported": [101.0, 105.0]}, 100.0, 10.0) == 4.0
    assert imported_before({"imported": [101.0, 105.0]}, 103.0, 10.0) == 2.0
    assert imported_before({"imported": [101.0, 105.0]}, 200.0, 10.0) == 0.0
    assert imported_before({"imported": [101.0, 105.0]}, 100.0, 1.5) == 1.5
    assert imported_before({}, 100.0, 10.0) == 0.0
