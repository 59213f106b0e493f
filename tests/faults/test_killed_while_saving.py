"""Writers of files are killed: the old file is left whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "saving.py"
KINDS = ("keras", "shards", "checkpoint")
MORE_KINDS = ("h5", "weights", "export", "backup")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "kinds",
    [pytest.param(KINDS, marks=pytest.mark.slow), pytest.param(MORE_KINDS, marks=pytest.mark.long)],
    ids=" ".join,
)
def test_a_killed_writer_leaves_the_old_file_whole(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    """At every rename and link, at some of the other doings, and in the middle of a file."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), *kinds],
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for kind in kinds:
        assert f"ok {kind}\n" in done.stdout
        assert done.stdout.count(f"{kind}: killed at ") >= 5
