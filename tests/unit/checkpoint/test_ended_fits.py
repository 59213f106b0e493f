"""The files of a `fit` that has ended: whole, or named as damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from syrtos.checkpoint import durable, ended_fits

PARTS = [b"first part", b"second part"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, data in enumerate(PARTS):
        ended_fits.write(tmp_path / "fit-1", part, len(PARTS), data, writer=part)
    return tmp_path / "fit-1"


def test_what_was_written_is_read(folder: Path) -> None:
    assert ended_fits.are_there(folder)
    assert ended_fits.read(folder) == (PARTS, [])


def test_nothing_is_there_before_all_parts_are(tmp_path: Path) -> None:
    assert not ended_fits.are_there(tmp_path)
    ended_fits.write(tmp_path, 1, 2, PARTS[1], writer=1)
    assert not ended_fits.are_there(tmp_path)
    assert ended_fits.read(tmp_path) == ([], [])


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "folder"])
def test_a_damaged_part_is_named_and_written_again(folder: Path, damage: str) -> None:
    path = next(folder.glob("part-1-of-2-*"))
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes({"flip": bytes(data), "truncate": bytes(data)[:4], "empty": b""}[damage])
    assert ended_fits.read(folder) == ([], [path])
    ended_fits.put_aside([path])
    ended_fits.put_aside([path])  # as another host may
    assert not ended_fits.are_there(folder)
    ended_fits.write(folder, 1, 2, PARTS[1], writer=1)
    assert ended_fits.read(folder) == (PARTS, [])


def test_a_whole_part_beside_a_damaged_one_is_used(folder: Path) -> None:
    damaged = folder / f"part-0-of-2-{'0' * 64}.safetensors"
    damaged.write_bytes(b"of another host")
    assert ended_fits.read(folder) == (PARTS, [damaged])


def test_other_files_are_no_parts(folder: Path) -> None:
    (folder / "part-of-mine-of-2-days.safetensors").touch()
    (folder / "part-0-of-2.safetensors").touch()
    assert ended_fits.read(folder) == (PARTS, [])


def test_a_full_disk_leaves_no_half_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        path.write_bytes(data[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "write", full)
    with pytest.raises(OSError, match="No space left"):
        ended_fits.write(tmp_path, 0, 1, b"part", writer=0)
    assert list(tmp_path.iterdir()) == []
