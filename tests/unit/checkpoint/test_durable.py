"""Files that appear whole, also where several processes write them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from syrtos.checkpoint import durable

WRITE = """
import sys
from pathlib import Path
from syrtos.checkpoint import durable

for number in range(300):
    durable.replace(Path(sys.argv[1]), sys.argv[2].encode() * 1000)
"""


def test_several_processes_may_replace_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE, path, letter], stderr=subprocess.PIPE)
        for letter in "ab"
    ]
    assert [(writer.communicate()[1], writer.returncode) for writer in writers] == [(b"", 0)] * 2
    assert path.read_text() in ("a" * 1000, "b" * 1000)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_has_its_permissions(tmp_path: Path) -> None:
    durable.replace(tmp_path / "secret", b"x", 0o600)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
