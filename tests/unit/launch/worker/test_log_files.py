"""The log of a worker whose disk takes nothing, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from pathlib import Path
from syrtos.launch.worker.log_files import WorkerLog
log = WorkerLog(Path(sys.argv[1]), os.dup(2), is_shown=sys.argv[2] == "0")
print("a" * 9000, flush=True)
print("b", file=sys.stderr)
log.append("more")
log.write_failure({"rank": 0})
print(log.path, file=sys.stderr)
"""


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize("kind", ["full", "none", "whole"])
def test_a_script_prints_whatever_becomes_of_its_log(tmp_path: Path, rank: str, kind: str) -> None:
    path = tmp_path / "logs" / f"rank-{rank}.log"
    if kind == "full":
        path.parent.mkdir()
        path.symlink_to("/dev/full")
    elif kind == "none":
        path.parent.touch()
    ended = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(path), rank],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert (ended.stdout == "a" * 9000 + "\n") == (rank == "0")
    assert ended.stderr.splitlines()[-1] == ("/dev/null" if kind == "none" else str(path))
    if kind == "whole":
        # a long line comes in pieces, between which others may stand
        assert sorted(path.read_text()) == sorted("a" * 9000 + "\nb\nmore")
