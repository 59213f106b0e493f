"""The folders of a run's generations, beside others of the user's."""

from __future__ import annotations

from pathlib import Path

from syrtos.launch.generations import next_generation
from syrtos.run_dir import RunDir


def test_only_folders_of_generations_count(tmp_path: Path) -> None:
    for name in (
        "generation-2",
        "generation-3",
        "generation-20261129",
        "generation-²",
        "generation-x",
    ):
        (tmp_path / name).mkdir()
    assert RunDir(tmp_path).generations() == [tmp_path]
    (tmp_path / "generation-2" / "logs").mkdir()
    (tmp_path / "generation-3" / "ledger").mkdir()
    assert RunDir(tmp_path).generations() == [
        tmp_path,
        tmp_path / "generation-2",
        tmp_path / "generation-3",
    ]
    assert next_generation(tmp_path, resume=True) == 4
    assert next_generation(tmp_path, resume=False) == 1
