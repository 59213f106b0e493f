"""Ledgers of hosts that share no run directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from syrtos.launch.plan import Group, LaunchPlan
from syrtos.launch.remote import records
from syrtos.launch.remote.records import MissingRecords
from syrtos.run_dir import RunDir
from syrtos.settings import OPTIONS_VARIABLE


def plan(run_dir: Path, reports: bool = True) -> LaunchPlan:
    groups = (Group(("x",), range(0, 1), "a"), Group(("x",), range(1, 3), "b"))
    return LaunchPlan(
        groups, {OPTIONS_VARIABLE: json.dumps({"run_dir": str(run_dir)})}, reports=reports
    )


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The launcher's run directory, with the ledger of its own worker."""
    written(RunDir(tmp_path / "here").ledger(0), "rank 0\n")
    return tmp_path / "here"


def test_what_is_not_here_comes_whole(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_PIECE", 5)
    written(RunDir(tmp_path / "there").ledger(1), "of rank 1, in several pieces\n")
    written(RunDir(tmp_path / "there").usage(1), "12345")  # as long as a piece
    written(RunDir(here).ledger(1).with_suffix(".partial"), "of an agent that was lost")
    found = MissingRecords(plan(here))
    assert found.missing("a") == []
    assert found.missing("b") == [1, 2]
    for data, facts in records.pieces(tmp_path / "there", [1, 2]):  # rank 2 has written nothing
        found.take("b", {**facts, "data": data})
    found.all_are_here("b")
    found.wait()
    assert RunDir(here).ledger(1).read_text() == "of rank 1, in several pieces\n"
    assert RunDir(here).usage(1).read_text() == "12345"
    assert not RunDir(here).ledger(2).exists()


def test_a_host_writes_the_files_of_its_own_ranks_alone(here: Path) -> None:
    found = MissingRecords(plan(here))
    (data, facts), *_ = records.pieces(here, [0])
    found.take("b", {**facts, "data": data + b"", "rank": 0})
    found.take("b", {**facts, "data": data, "rank": 1, "file": "../../x"})
    assert RunDir(here).ledger(0).read_text() == "rank 0\n"
    assert sorted(path.name for path in (here / "ledger").iterdir()) == ["rank-0.jsonl"]


def test_nothing_is_asked_of_commands_and_of_this_machine(here: Path) -> None:
    assert MissingRecords(plan(here, reports=False)).missing("b") == []
    assert (
        MissingRecords(LaunchPlan((Group(("x",), range(2)),), plan(here).environment)).missing("")
        == []
    )


def test_files_of_an_earlier_run_are_not_sent(here: Path) -> None:
    written(RunDir(here).usage(1), "old")
    records.forget(here, [0, 1])
    assert list(records.pieces(here, [0, 1])) == []
