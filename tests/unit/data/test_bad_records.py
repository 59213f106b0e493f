"""The lists of records that were left out."""

from __future__ import annotations

from pathlib import Path

from syrtos.data.bad_records import BadRecords, bad_list, left_out
from syrtos.data.sources import BadRecord


def note(run_dir: Path, *indices: int) -> None:
    policy = BadRecords("skip", 10, 100)
    policy.write_to(str(run_dir), 0)
    for index in indices:
        policy.leave_out(BadRecord(index, "file", index, "bad"))


def test_half_a_line_of_a_killed_worker_hides_no_other(tmp_path: Path) -> None:
    note(tmp_path, 1, 2)
    with bad_list(tmp_path / "data", 0).open("a") as file:
        file.write('{"index": 3, "fi')
    note(tmp_path, 4, 5)
    assert [facts["index"] for facts in left_out(tmp_path)] == [1, 2, 4, 5]
