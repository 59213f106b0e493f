"""The files of a run, by what they hold."""

from __future__ import annotations

from pathlib import Path

from syrtos.run_dir import RunDir


def test_the_first_generation_is_the_folder_of_the_run(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    assert files.newest() == files
    assert files.newest_number() == 1
    for name in ("generation-10/ledger", "generation-9/logs"):
        (tmp_path / name).mkdir(parents=True)
    # the user's own
    (tmp_path / "generation-11").mkdir()
    for name in ("generation-x", "generation-0", "generation-1", "generation-007"):
        (tmp_path / name / "ledger").mkdir(parents=True)
    assert files.newest() == RunDir(tmp_path / "generation-10")
    assert files.newest_number() == 10
    assert files.generations() == [tmp_path, files.generation(9), files.generation(10)]


def test_a_request_that_is_damaged_is_empty(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    assert files.request() == {}
    files.request_file.write_text("[]")
    assert files.request() == {}
    files.request_file.write_text('{"workers": 2}')
    assert files.request() == {"workers": 2}


def test_ledgers_are_ordered_by_rank(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    assert files.ledgers() == {}
    files.records.mkdir()
    for rank in (10, 2):
        files.ledger(rank).touch()
    (files.records / "rank-x.jsonl").touch()
    assert list(files.ledgers().items()) == [(2, files.ledger(2)), (10, files.ledger(10))]
