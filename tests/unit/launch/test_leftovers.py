"""Only dead segments of our MPI are removed."""

from __future__ import annotations

import mmap
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from syrtos.launch import leftovers

Segment = Callable[..., Path]


@pytest.fixture
def segment() -> Iterator[Segment]:
    """Makes files in shared memory, an hour old unless told."""
    made: list[Path] = []

    def make(prefix: str = "mpich_shm_", age: float = 3600.0) -> Path:
        path = Path("/dev/shm", f"{prefix}syrtos_test_{secrets.token_hex(4)}")
        path.write_bytes(b"\0" * mmap.PAGESIZE)
        os.utime(path, (time.time(), time.time() - age))
        made.append(path)
        return path

    yield make
    for path in made:
        path.unlink(missing_ok=True)


def test_dead_segments_are_swept(segment: Segment) -> None:
    dead = [segment(), segment()]
    leftovers.sweep()
    assert not any(path.exists() for path in dead)


@pytest.mark.parametrize("prefix", ["psm_", "sem.mpich_shm_", "mpich_", "MPICH_SHM_", "torch_"])
def test_files_of_others_are_left_alone(segment: Segment, prefix: str) -> None:
    foreign = segment(prefix)
    leftovers.sweep()
    leftovers.remove([str(foreign)])
    assert foreign.exists()


def test_young_segments_may_be_about_to_be_mapped(segment: Segment) -> None:
    young = segment(age=5.0)
    leftovers.sweep()
    assert young.exists()


def test_mapped_segments_are_in_use(segment: Segment) -> None:
    path = segment()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert str(path) in leftovers.mapped()
        assert str(path) in leftovers.mapped(os.getpid())
        leftovers.sweep()
        assert path.exists()
    assert str(path) not in leftovers.mapped()


def test_a_mapped_segment_is_known_by_name_even_once_unlinked(segment: Segment) -> None:
    path = segment()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        path.unlink()
        assert str(path) in leftovers.mapped()


def test_other_mapped_files_are_none_of_ours(segment: Segment) -> None:
    path = segment("psm_")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert str(path) not in leftovers.mapped()


def test_a_process_that_has_ended_has_mapped_nothing() -> None:
    assert leftovers.mapped(2**22 + 1) == []


def test_segments_of_ended_workers_are_removed_at_any_age(segment: Segment) -> None:
    path = segment(age=0.0)
    leftovers.remove([str(path), str(path), "/dev/shm/mpich_shm_gone_already"])
    assert not path.exists()


@pytest.mark.parametrize(
    "where", ["{folder}/mpich_shm_a", "/dev/shm/../..{folder}/mpich_shm_a", "/dev/shm/x/..{folder}/mpich_shm_a"]
)
def test_nothing_outside_shared_memory_is_removed(tmp_path: Path, where: str) -> None:
    path = tmp_path / "mpich_shm_a"
    path.touch()
    leftovers.remove([where.format(folder=tmp_path)])
    assert path.exists()
