"""Files that tell parameter servers of workers that have died."""

from __future__ import annotations

from pathlib import Path

import pytest

from syrtos.launch import lost_workers


def test_a_death_is_noted_and_forgotten(tmp_path: Path) -> None:
    lost_workers.note(str(tmp_path), 2)
    lost_workers.note(str(tmp_path), 2)
    assert lost_workers.lost_ranks(str(tmp_path)) == {2}
    lost_workers.forget(tmp_path)
    assert lost_workers.lost_ranks(str(tmp_path)) == set()


def test_a_folder_that_is_not_there_ends_no_server(tmp_path: Path) -> None:
    """Before anybody has died."""
    assert lost_workers.lost_ranks(str(tmp_path / "nowhere")) == set()


def test_a_death_that_can_not_be_noted_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lost").touch()  # no folder
    lost_workers.note(str(tmp_path), 2)
    assert "parameter servers can't learn of rank 2's death" in capsys.readouterr().err
