"""Snapshots in files: complete, verified, two of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from syrtos.checkpoint import folders
from syrtos.checkpoint.encoding import pack
from syrtos.checkpoint.slots import Slots, SlotsInMemory


@pytest.fixture
def slots() -> Iterator[Slots]:
    memory = SlotsInMemory(2)
    slots = Slots(memory.places)
    yield slots
    slots.close()
    memory.close()


def commit(slots: Slots, number: int) -> None:
    for rank in (0, 1):
        slots.write(rank, number, 2, part(number, rank))


def part(number: int, rank: int) -> bytes:
    return pack({}, {"text": f"{number} of {rank}"})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_to_save(slots: Slots, tmp_path: Path) -> None:
    assert folders.save(slots, tmp_path / "kept") == 0
    assert not (tmp_path / "kept").exists()
    assert folders.load(tmp_path / "kept", slots) == (0, [])


def test_two_are_kept_and_the_newest_is_found(slots: Slots, tmp_path: Path) -> None:
    for number in (1, 2, 3, 11):
        commit(slots, number)
        assert folders.save(slots, tmp_path) == number
    assert names(tmp_path) == ["snapshot-11", "snapshot-3"]
    commit(slots, 12)
    assert folders.load(tmp_path, slots) == (11, [])
    assert slots.read(1, 11) == part(11, 1)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest"])
def test_a_damaged_one_is_named_and_the_one_before_is_used(
    slots: Slots, tmp_path: Path, damage: str
) -> None:
    for number in (1, 2):
        commit(slots, number)
        folders.save(slots, tmp_path)
    part = (
        tmp_path
        / "snapshot-2"
        / ("manifest.json" if damage == "manifest" else "part-1.safetensors")
    )
    content = bytearray(part.read_bytes())
    if damage == "remove":
        part.unlink()
    else:
        content[3] ^= 1
        part.write_bytes(content[:4] if damage in ("truncate", "manifest") else content)
    number, complaints = folders.load(tmp_path, slots)
    assert number == 1
    assert len(complaints) == 1
    assert complaints[0].startswith(
        f"{tmp_path / 'snapshot-2'} is not used, and is {tmp_path / 'damaged-2'} now: "
    )
    assert names(tmp_path) == ["damaged-2", "snapshot-1"]


@pytest.mark.parametrize(
    "text",
    ["", "\0\xff", "[]", "3", '{"number": 2}', '{"sha256": 5}', '{"sha256": []}', '{"sha256": ["a"]}', "[" * 9999],
)  # fmt: skip
def test_a_manifest_with_other_contents_is_named(slots: Slots, tmp_path: Path, text: str) -> None:
    for number in (1, 2):
        commit(slots, number)
        folders.save(slots, tmp_path)
    (tmp_path / "snapshot-2" / "manifest.json").write_text(text)
    number, complaints = folders.load(tmp_path, slots)
    assert number == 1
    assert "manifest.json is damaged: " in complaints[0]


def test_a_draft_of_a_writer_that_was_killed_is_none(slots: Slots, tmp_path: Path) -> None:
    commit(slots, 1)
    folders.save(slots, tmp_path)
    (tmp_path / "snapshot-1").rename(tmp_path / ".snapshot-1")
    assert folders.load(tmp_path, slots) == (0, [])
    folders.save(slots, tmp_path)
    assert names(tmp_path) == ["snapshot-1"]


def test_one_that_is_being_replaced_is_not_copied_in_part(slots: Slots, tmp_path: Path) -> None:
    commit(slots, 1)
    pieces = slots.pieces(1, 1)
    slots.write(1, 3, 2, b"newer")
    with pytest.raises(BlockingIOError):
        list(pieces)


def test_only_what_was_kept_is_forgotten(slots: Slots, tmp_path: Path) -> None:
    commit(slots, 1)
    folders.save(slots, tmp_path / "kept")
    (tmp_path / "kept" / "snapshot-of-mine.png").touch()
    folders.forget(tmp_path / "kept")
    assert names(tmp_path / "kept") == ["snapshot-of-mine.png"]


def test_a_full_disk_leaves_no_half_snapshot(
    slots: Slots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(slots, 1)

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "_copy", full)
    with pytest.raises(OSError, match="No space left"):
        folders.save(slots, tmp_path)
    assert names(tmp_path) == []


def test_a_pipe_in_the_place_of_a_snapshot_is_not_opened(slots: Slots, tmp_path: Path) -> None:
    commit(slots, 1)
    folders.save(slots, tmp_path)
    os.mkfifo(tmp_path / "snapshot-2")
    os.mkfifo(tmp_path / "damaged-2")
    number, (complaint,) = folders.load(tmp_path, slots)
    assert (number, names(tmp_path)) == (1, ["damaged-2", "snapshot-1"])
    assert "is not used" in complaint
    folders.forget(tmp_path)
    assert not tmp_path.exists()
