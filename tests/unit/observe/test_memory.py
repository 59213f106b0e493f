"""Free memory, as the kernel tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from syrtos.observe import memory
from syrtos.observe.memory import MachineMemory


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """With 8 GiB available, in a group ``/job/step``."""
    (tmp_path / "meminfo").write_text("MemTotal: 9999999 kB\nMemAvailable:    8388608 kB\n")
    (tmp_path / "own").write_text("1:name=systemd:/x\n0::/job/step\n")
    (tmp_path / "cgroup" / "job" / "step").mkdir(parents=True)
    return tmp_path


def available(machine: Path) -> int:
    return memory.now(machine / "cgroup", machine / "own", machine / "meminfo").available


def limit(group: Path, most: str, used: int, cached: int) -> None:
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")


def test_that_of_the_machine(machine: Path) -> None:
    assert available(machine) == 8 << 30
    limit(machine / "cgroup" / "job" / "step", "max", 7, 3)
    assert available(machine) == 8 << 30


def test_that_of_a_control_group_around_this_one(machine: Path) -> None:
    limit(machine / "cgroup" / "job" / "step", "max", 7, 3)
    limit(machine / "cgroup" / "job", str(4 << 30), 3 << 30, 1 << 29)
    assert available(machine) == (1 << 30) + (1 << 29)


def test_nothing_is_known(machine: Path) -> None:
    (machine / "meminfo").unlink()
    (machine / "own").unlink()
    assert available(machine) >= 1 << 40


def test_of_this_machine() -> None:
    assert 1 << 20 < memory.now().available <= memory.now().total < 1 << 60


def test_a_container_of_version_2_has_less_than_the_machine(tmp_path: Path) -> None:
    group = tmp_path / "cgroup" / "user" / "job"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("200000000\n")
    (group.parent / "memory.current").write_text("150000000\n")
    (group.parent / "memory.stat").write_text("anon 1\ninactive_file 30000000\n")
    (tmp_path / "own").write_text("0::/user/job\n")
    assert memory.now(tmp_path / "cgroup", tmp_path / "own") == MachineMemory(
        80_000_000, 200_000_000
    )


def test_a_container_of_version_1_has_less_than_the_machine(tmp_path: Path) -> None:
    group = tmp_path / "cgroup" / "memory"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("200000000\n")
    (group / "memory.usage_in_bytes").write_text("50000000\n")
    (tmp_path / "own").write_text("4:memory:/elsewhere\n3:cpu:/\n")
    assert memory.now(tmp_path / "cgroup", tmp_path / "own") == MachineMemory(
        150_000_000, 200_000_000
    )
