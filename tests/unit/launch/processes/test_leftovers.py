"""The names of our MPI's segments go early, and no others."""

from __future__ import annotations

import mmap
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.comm.watchdog import Watchdog
from syrtos.comm.world import Session
from syrtos.launch.processes import leftovers
from syrtos.observe.ledger import Ledger
from syrtos.settings import Options
from syrtos.topology import World

Segment = Callable[..., Path]
Together = Callable[..., list[Any]]


@pytest.fixture
def segment() -> Iterator[Segment]:
    """Makes files in shared memory."""
    made: list[Path] = []

    def make(prefix: str = "mpich_shm_") -> Path:
        path = Path("/dev/shm", f"{prefix}syrtos_test_{secrets.token_hex(4)}")
        path.write_bytes(b"\0" * mmap.PAGESIZE)
        made.append(path)
        return path

    yield make
    for path in made:
        path.unlink(missing_ok=True)


def unlink_early(comm: InProcessCommunicator, local_rank: int | None = None) -> None:
    place = World(comm.rank, comm.size, comm.rank if local_rank is None else local_rank, comm.size)
    leftovers.unlink_early(Session(place, comm, comm, Options(), Ledger(), Watchdog(10.0)))


def test_names_go_early_and_the_memory_stays(segment: Segment, together: Together) -> None:
    path, foreign, unmapped = segment(), segment("psm_"), segment()
    with (
        path.open("r+b") as file,
        foreign.open("r+b") as other,
        mmap.mmap(file.fileno(), 0) as memory,
        mmap.mmap(other.fileno(), 0),
    ):
        together(2, unlink_early)
        assert not path.exists()
        assert foreign.exists()
        assert unmapped.exists()
        memory[0] = 7
        assert memory[0] == 7


def test_names_stay_until_every_worker_has_mapped_them(
    segment: Segment, together: Together
) -> None:
    path = segment()
    seen: list[bool] = []

    def late(comm: InProcessCommunicator) -> None:
        if comm.rank == 1:
            time.sleep(0.2)
            seen.append(path.exists())
        unlink_early(comm)
        seen.append(path.exists())

    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        together(2, late)
    assert seen == [True, False, False]


def test_one_worker_of_each_host_does_it(segment: Segment, together: Together) -> None:
    path = segment()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        together(2, lambda comm: unlink_early(comm, local_rank=1))
        assert path.exists()


@pytest.mark.parametrize("prefix", ["psm_", "sem.mpich_shm_", "mpich_", "MPICH_SHM_", "torch_"])
def test_files_of_others_are_left_alone(segment: Segment, prefix: str) -> None:
    foreign = segment(prefix)
    leftovers.remove([str(foreign)])
    assert foreign.exists()


def test_mapped_segments_are_known_by_name(segment: Segment) -> None:
    path = segment()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert str(path) in leftovers.mapped_segments()
        assert str(path) in leftovers.mapped_segments(os.getpid())
    assert str(path) not in leftovers.mapped_segments()


def test_a_mapped_segment_is_known_by_name_even_once_unlinked(segment: Segment) -> None:
    path = segment()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        path.unlink()
        assert str(path) in leftovers.mapped_segments()


def test_other_mapped_files_are_none_of_ours(segment: Segment) -> None:
    path = segment("psm_")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert str(path) not in leftovers.mapped_segments()


def test_a_process_that_has_ended_has_mapped_nothing() -> None:
    assert leftovers.mapped_segments(2**22 + 1) == []


def test_segments_are_removed_by_name(segment: Segment) -> None:
    path = segment()
    leftovers.remove([str(path), str(path), "/dev/shm/mpich_shm_gone_already"])
    assert not path.exists()


@pytest.mark.parametrize(
    "where",
    [
        "{folder}/mpich_shm_a",
        "/dev/shm/../..{folder}/mpich_shm_a",
        "/dev/shm/x/..{folder}/mpich_shm_a",
    ],
)
def test_nothing_outside_shared_memory_is_removed(tmp_path: Path, where: str) -> None:
    path = tmp_path / "mpich_shm_a"
    path.touch()
    leftovers.remove([where.format(folder=tmp_path)])
    assert path.exists()


def test_segments_of_a_world_are_known_by_the_name_of_its_store() -> None:
    """As MPICH 5.0.2 has named those of a world of this name."""
    mine, other = (Path("/dev/shm", f"mpich_shm_{name}_0") for name in ("e1ea116e", "e1ea116f"))
    for path in (mine, other):
        path.touch()
    leftovers.remove_of_world("kvs_000000000000")
    assert not mine.exists()
    assert other.exists()
    other.unlink()
