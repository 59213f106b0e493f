"""Free memory, as the kernel tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from syrtos.checkpoint import memory


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With 8 GiB available, in a group ``/job/step``."""
    (tmp_path / "meminfo").write_text("MemTotal: 9999999 kB\nMemAvailable:    8388608 kB\n")
    (tmp_path / "own").write_text("1:name=systemd:/x\n0::/job/step\n")
    (tmp_path / "cgroup" / "job" / "step").mkdir(parents=True)
    for name, path in (("_MEMINFO", "meminfo"), ("_CGROUPS", "cgroup"), ("_OWN", "own")):
        monkeypatch.setattr(memory, name, tmp_path / path)
    return tmp_path


def limit(group: Path, most: str, used: int, cached: int) -> None:
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")


def test_that_of_the_machine(machine: Path) -> None:
    assert memory.available() == 8 << 30
    limit(machine / "cgroup" / "job" / "step", "max", 7, 3)
    assert memory.available() == 8 << 30


def test_that_of_a_control_group_around_this_one(machine: Path) -> None:
    limit(machine / "cgroup" / "job" / "step", "max", 7, 3)
    limit(machine / "cgroup" / "job", str(4 << 30), 3 << 30, 1 << 29)
    assert memory.available() == (1 << 30) + (1 << 29)


def test_nothing_is_known(machine: Path) -> None:
    (machine / "meminfo").unlink()
    (machine / "own").unlink()
    assert memory.available() >= 1 << 40


def test_here() -> None:
    assert memory.available() > 1 << 20
