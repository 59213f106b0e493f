"""What a report says, and what it says where the record is not whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded import curve, epochs, generation, step
from rich.console import Console

from syrtos.errors import ConfigurationError
from syrtos.report import compare, facts, page, text
from syrtos.report.facts import shown_arguments
from syrtos.report.read import load
from syrtos.run_dir import RunDir


def trained(folder: Path, wall: float = 0.1, ranks: int = 2) -> None:
    lines = [
        {"phase": "script", "wall": 1.0, "start": 1.0},
        *(step(n, wall + 0.001 * (n % 7)) for n in range(60)),
    ]
    generation(folder, 100.0, 110.0, [lines] * ranks)


@pytest.mark.parametrize("name", ["nothing", "empty", "a file"])
def test_a_folder_without_a_run_is_refused(tmp_path: Path, name: str) -> None:
    if name == "empty":
        (tmp_path / name).mkdir()
    if name == "a file":
        (tmp_path / name).write_text("x")
    with pytest.raises(ConfigurationError, match=r"run directory"):
        load(tmp_path / name)


def test_damage_is_told(tmp_path: Path) -> None:
    trained(tmp_path)
    path = RunDir(tmp_path).ledger(0)
    whole = path.read_text().splitlines()
    path.write_text("\n".join([*whole[:10], "{broken", "[1]", *whole[10:]]) + '\n{"phase": "tra')
    found = facts.of_run(load(tmp_path))
    assert found["steps"]["count"] == 60
    damaged, cut = found["missing"]
    assert damaged.startswith("2 lines of")
    assert cut.endswith("ends in the middle of a line: what followed is not there.")


def test_an_older_record(tmp_path: Path) -> None:
    """Without the start of processes, outcomes, curves, samples of machines, and with a kind of time that is no more."""
    path = RunDir(tmp_path).ledger(0)
    path.parent.mkdir(parents=True)
    line = {
        "phase": "train",
        "step": 0,
        "steps": 1,
        "samples": 8,
        "wall": 0.5,
        "compute": 0.3,
        "gone": 0.2,
    }
    path.write_text((json.dumps(line) + "\n") * 10)
    found = facts.of_run(load(tmp_path))
    assert sum(found["seconds"].values()) == pytest.approx(5.0)
    assert len(found["missing"]) == 2
    assert "Syrtos" in page.page([found])


def test_a_rank_whose_ledger_is_elsewhere_is_named(tmp_path: Path) -> None:
    trained(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"workers": 4, "program": {"name": "train.py"}}))
    assert any("ranks 2, 3" in sentence for sentence in load(tmp_path).missing)


def test_the_cause_of_an_outlier(tmp_path: Path) -> None:
    mine = [step(n) for n in range(30)]
    theirs = [step(n) for n in range(30)]
    mine[20] = step(20, 1.1, wait=1.0)
    theirs[20] = step(20, 1.1, input=1.0)
    mine[10] = step(10, 0.6, trace=0.5)
    generation(tmp_path, 0.0, 10.0, [mine, theirs])
    outliers = facts.of_run(load(tmp_path))["steps"]["outliers"]
    assert [outlier["number"] for outlier in outliers] == [11, 21]
    assert outliers[0]["why"].startswith("tracing took 0.500 s longer")
    assert (
        outliers[1]["why"]
        == "waited 1.000 s for rank 1, whose input took 1.000 s longer than usual"
    )


def test_curves_after_a_restart_have_each_step_once(tmp_path: Path) -> None:
    """The first generation's fourth epoch was lost with it."""
    generation(tmp_path, 0.0, 5.0, [[step(n) for n in range(10)]], outcome="CRASHED")
    rows = [
        {
            "time": k,
            "fit": 1,
            "epoch": k,
            "trained": 2 * k,
            "logs": {"loss": 9.0 - k},
            "learning_rate": 0.1,
        }
        for k in (1, 2, 3, 4)
    ]
    epochs(tmp_path, rows)
    again = tmp_path / "generation-2"
    generation(
        again, 5.0, 9.0, [[{"phase": "facts", "trained": 6}, *(step(n) for n in range(6, 10))]]
    )
    epochs(
        again,
        [
            {
                "time": 7,
                "fit": 1,
                "epoch": 4,
                "trained": 2,
                "logs": {"loss": float("nan")},
                "learning_rate": 0.05,
            }
        ],
    )
    curve(
        again,
        [
            {
                "time": 6.5,
                "fit": 1,
                "epoch": 4,
                "trained": 1,
                "logs": {"loss": 5.5},
                "learning_rate": 0.1,
            }
        ],
    )
    found = facts.of_run(load(tmp_path))
    assert found["curves"]["metrics"]["loss"]["epochs"] == [[2, 8.0], [4, 7.0], [6, 6.0], [8, None]]
    assert found["curves"]["metrics"]["loss"]["within"] == [[7, 5.5]]
    assert found["curves"]["learning_rate"][-1] == [8, 0.05]
    (incident,) = found["incidents"]
    assert (incident["step"], incident["again"]) == (10, 4)


@pytest.mark.parametrize(
    ("outcome", "failure"), [("CRASHED", "crashed."), ("STOPPED", "stopped."), ("FINISHED", "")]
)
def test_a_report_begins_with_how_the_run_failed(
    tmp_path: Path, outcome: str, failure: str
) -> None:
    generation(tmp_path, 0.0, 5.0, [[step(n) for n in range(10)]], outcome=outcome)
    found = facts.of_run(load(tmp_path))
    assert text.failure_of(found) == failure
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(text.report(found))
    assert console.export_text().splitlines()[2].strip() == failure


def test_the_forms_of_a_report(tmp_path: Path) -> None:
    """Names come from scripts: nothing in them is markup of the page or of the terminal."""
    trained(tmp_path)
    nasty = "</script><img src=x>[bold]"
    epochs(
        tmp_path,
        [
            {
                "time": 1,
                "fit": 1,
                "epoch": 1,
                "trained": 30,
                "logs": {nasty: 1.0},
                "learning_rate": None,
            }
        ],
    )
    found = facts.of_run(load(tmp_path))
    whole = page.page([found])
    assert nasty not in whole
    assert whole.count("</script>") == whole.count("<script")
    assert 'http-equiv="refresh"' not in whole
    assert json.loads(json.dumps(page.finite(found), allow_nan=False))["steps"]["count"] == 60
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(text.report(found))
    assert nasty in console.export_text()


def test_a_page_of_a_run_that_goes_on_reads_itself_again(tmp_path: Path) -> None:
    trained(tmp_path)
    RunDir(tmp_path).launcher.write_text(json.dumps({"began": 100.0}))
    assert 'http-equiv="refresh"' in page.page(
        [facts.of_run(load(tmp_path, goes_on=True))], live=True
    )


@pytest.mark.parametrize(("wall", "is_noise"), [(0.1, True), (0.13, False)])
def test_two_runs(tmp_path: Path, wall: float, is_noise: bool) -> None:
    trained(tmp_path / "a")
    trained(tmp_path / "b", wall)
    runs = load(tmp_path / "a"), load(tmp_path / "b")
    both = facts.of_run(runs[0]), facts.of_run(runs[1])
    found = compare.compare_runs(*runs, both)
    assert found["steps"][0]["is_noise"] is is_noise
    assert ("within the noise" in found["text"]) is is_noise
    assert "more time" in found["text"] or is_noise
    assert "Syrtos" in page.page(both, found)


def test_arguments_that_are_named_like_secrets() -> None:
    words = [
        "--epochs",
        "3",
        "--api-key",
        "abc",
        "--password=x",
        "--token",
        "t",
        "--tokens",
        "9",
        "-v",
    ]
    assert shown_arguments(words) == [
        "--epochs",
        "3",
        "--api-key",
        "******",
        "--password=******",
        "--token",
        "******",
        "--tokens",
        "9",
        "-v",
    ]


def test_what_was_made_again_after_several_restarts(tmp_path: Path) -> None:
    """100 steps; a generation that died before it went on; steps 80 to 110; and on from 60."""

    def made(first: int, last: int, before: int | None) -> list[dict[str, object]]:
        told: list[dict[str, object]] = (
            [] if before is None else [{"phase": "facts", "trained": before}]
        )
        return [*told, *(step(number) for number in range(first, last))]

    generation(tmp_path, 0.0, 10.0, [made(0, 100, None)], outcome="CRASHED")
    generation(tmp_path / "generation-2", 10.0, 12.0, [[]], outcome="CRASHED")
    generation(tmp_path / "generation-3", 12.0, 16.0, [made(80, 110, 80)], outcome="CRASHED")
    generation(tmp_path / "generation-4", 16.0, 24.0, [made(60, 120, 60)])
    found = facts.of_run(load(tmp_path))
    assert [incident["again"] for incident in found["incidents"]] == [40, 0, 50]
    assert found["steps"]["count"] == 120
    assert found["steps"]["number"] == sorted(set(found["steps"]["number"]))
    assert sum(found["seconds"].values()) == pytest.approx(24.0)
    assert found["seconds"]["compute"] == pytest.approx(12.0)  # each step once


def test_steps_that_were_executed_as_one_are_late_together(tmp_path: Path) -> None:
    lines = [step(n, 0.32) | {"steps": 32} for n in range(20)]
    lines[10] = step(10, 3.52, input=3.2) | {"steps": 32}
    generation(tmp_path, 0.0, 20.0, [lines])
    (outlier,) = facts.of_run(load(tmp_path))["steps"]["outliers"]
    assert outlier["why"] == "input took 3.200 s longer than usual"


def test_a_ledger_that_was_cut_between_two_lines(tmp_path: Path) -> None:
    trained(tmp_path)
    path = RunDir(tmp_path).ledger(0)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:32]))
    (sentence,) = facts.of_run(load(tmp_path))["missing"]
    assert "different numbers of training steps (29 and 60)" in sentence


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({}, ""),
        (
            {"not_split": "`train_step` of m: it runs eagerly"},
            "Not split: `train_step` of m: it runs eagerly. The whole batch is computed as by one process.",
        ),
        (
            {"computed_whole": "Unique in train.py:3"},
            "Each worker computes on gathered rows of whole batches: Unique in train.py:3.",
        ),
    ],
)
def test_what_is_not_split_is_told(tmp_path: Path, said: dict[str, object], sentence: str) -> None:
    generation(
        tmp_path, 100.0, 110.0, [[{"phase": "facts", **said}, *(step(n, 0.1) for n in range(9))]]
    )
    found = facts.of_run(load(tmp_path))
    assert found["split"] == sentence
    console = Console(record=True, width=200)
    console.print(text.report(found))
    assert sentence in console.export_text()
