"""`syrtos doctor --write` leaves a script as it is, or writes all of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from syrtos.errors import ConfigurationError
from syrtos_migrate import convert


@pytest.mark.parametrize("kind", ["write_text", "replace"])
def test_a_full_disk_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def full(*_args: Any, **_named: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    script = tmp_path / "train.py"
    script.write_text("before\n")
    monkeypatch.setattr(Path, kind, full)
    with pytest.raises(ConfigurationError, match=r"is left as it is: .*No space left"):
        convert.write(convert.Result(script, "before\n", "after\n", (), ()))
    assert os.listdir(tmp_path) == ["train.py"]
    assert script.read_bytes() == b"before\n"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_ends_of_lines_and_links_stay(tmp_path: Path, end: str) -> None:
    script, link = tmp_path / "train.py", tmp_path / "link.py"
    script.write_bytes(f"a{end}b{end}".encode())
    script.chmod(0o750)
    link.symlink_to("train.py")
    convert.write(convert.Result(link, "a\nb\n", "a\nc\n", (), ()))
    assert link.is_symlink()
    assert script.read_bytes() == f"a{end}c{end}".encode()
    assert script.stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "train.py.before").read_bytes() == f"a{end}b{end}".encode()
