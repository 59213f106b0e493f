"""Memory for snapshots: what is committed, also while somebody writes."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from syrtos.checkpoint.slots import Slots, SlotsInMemory


@pytest.fixture(params=["of this process", "in a folder"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SlotsInMemory]:
    folder = Path(tempfile.mkdtemp(dir=tmp_path)) if request.param == "in a folder" else None
    memory = SlotsInMemory(2, folder)
    yield memory
    memory.close()
    assert folder is None or not folder.exists()


def test_nothing_is_committed_at_the_beginning(memory: SlotsInMemory) -> None:
    assert Slots(memory.places).committed_number() == 0


def test_a_snapshot_is_committed_once_all_parts_are_written(memory: SlotsInMemory) -> None:
    slots = Slots(memory.places)
    slots.write(0, 1, 2, b"first of 0")
    assert slots.committed_number() == 0
    slots.write(1, 1, 2, b"first of 1")
    assert slots.committed_number() == 1
    slots.write(0, 2, 2, b"second")
    assert slots.committed_number() == 1
    assert slots.read(0, 1) == b"first of 0"
    slots.write(1, 2, 2, b"")
    assert (slots.committed_number(), slots.read(0, 2), slots.read(1, 2)) == (2, b"second", b"")


def test_the_pieces_of_a_part_follow_each_other(memory: SlotsInMemory) -> None:
    slots = Slots(memory.places)
    slots.write(0, 1, 1, b"head ", b"", memoryview(b"x" * (20 << 20)), b" end")
    assert slots.read(0, 1) == b"head " + b"x" * (20 << 20) + b" end"


def test_other_processes_find_it_by_path_and_after_the_writer_has_gone(
    memory: SlotsInMemory,
) -> None:
    child = os.fork()
    if child == 0:
        slots = Slots(memory.places)
        for rank in (0, 1):
            slots.write(rank, 1, 2, b"of a process that is gone" * 10**6)
        os._exit(0)
    os.waitpid(child, 0)
    slots = Slots(memory.places)
    assert slots.committed_number() == 1
    assert slots.read(1, 1) == b"of a process that is gone" * 10**6


def test_one_that_is_being_written_counts_as_none(memory: SlotsInMemory) -> None:
    slots = Slots(memory.places)
    for number in (1, 2):
        for rank in (0, 1):
            slots.write(rank, number, 2, b"x" * 100)
    slot = os.open(memory.places[0][0], os.O_RDWR)  # of snapshot 2, and of 4
    os.pwrite(slot, bytes(24), 0)
    assert slots.committed_number() == 1
    os.close(slot)


def test_a_reader_notices_that_it_was_overtaken(memory: SlotsInMemory) -> None:
    slots = Slots(memory.places)
    slots.write(0, 1, 2, b"x" * (40 << 20))
    pieces = slots.pieces(0, 1)
    next(pieces)
    slots.write(0, 3, 2, b"y")
    with pytest.raises(BlockingIOError, match="Part 0 of snapshot 1 has been replaced"):
        next(pieces)


def test_what_not_all_have_written_is_dropped_between_generations(memory: SlotsInMemory) -> None:
    slots = Slots(memory.places)
    slots.write(0, 1, 2, b"1")
    slots.write(1, 1, 2, b"1")
    slots.write(0, 2, 2, b"of the generation before")
    slots.drop_all_but(slots.committed_number())
    slots.write(1, 2, 2, b"of the next")
    assert (slots.committed_number(), slots.read(0, 1)) == (1, b"1")


def test_a_snapshot_may_have_fewer_parts_than_there_is_room_for(memory: SlotsInMemory) -> None:
    """Another host has taken over workers of this one, or they have come back."""
    slots = Slots(memory.places)
    for part in (0, 1):
        slots.write(part, 1, 2, b"of two")
    slots.write(0, 2, 1, b"of one")
    assert (slots.complete_numbers(), slots.committed_number(), slots.parts(1), slots.parts(2)) == (
        {1, 2},
        2,
        2,
        1,
    )


def test_a_shorter_one_has_nothing_of_the_longer_before(memory: SlotsInMemory) -> None:
    slots = Slots(memory.places)
    slots.write(0, 1, 2, b"long" * 100)
    slots.write(0, 3, 2, b"short")
    assert slots.read(0, 3) == b"short"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_full_file_system_is_an_error_and_what_was_committed_stays(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=True)
    try:
        memory = SlotsInMemory(1, Path(tempfile.mkdtemp(dir=tmp_path)))
        slots = Slots(memory.places)
        slots.write(0, 1, 1, bytes(600_000))
        with pytest.raises(OSError, match="No space left"):
            slots.write(0, 2, 1, bytes(600_000))
        assert (slots.committed_number(), len(slots.read(0, 1))) == (1, 600_000)
        slots.close()
        memory.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
