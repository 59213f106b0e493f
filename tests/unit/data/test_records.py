"""Reading files of records, good and bad."""

from __future__ import annotations

import gzip
import itertools
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2]))  # workers import this file by its path

from framing import framed
from syrtos.comm import world
from syrtos.data.bad_records import BadRecords
from syrtos.data.cache import Cache
from syrtos.data.files import CachedFile, LocalFile
from syrtos.data.find import find
from syrtos.data.lines import LineRecords, are_numbers, check_columns, csv_rows
from syrtos.data.loader import Loader
from syrtos.data.records import Format, Records
from syrtos.data.sources import BadRecord
from syrtos.data.tfrecord import TFRecord
from syrtos.errors import DataError
from syrtos.testing import run_world


def records_of(folder: Path, *files: bytes, layout: Format | None = None) -> Records:
    for number, content in enumerate(files):
        (folder / f"part-{number}").write_bytes(content)
    return Records(
        find(folder / "part-*", Cache(folder / "cache")),
        layout or TFRecord(),
        Cache(folder / "cache"),
    )


def everything(source: Records) -> list[bytes]:
    return source.read(np.arange(len(source)))


def test_a_header_is_read_whatever_character_the_window_ends_in(tmp_path: Path) -> None:
    for shift in range(3):
        path = tmp_path / f"{shift}.csv"
        path.write_text("\ufeffa,b\n" + "x" * shift + "€" * (1 << 19), encoding="utf-8")
        assert check_columns([LocalFile(path)]) == ["a", "b"]


@given(st.lists(st.lists(st.binary(max_size=50), max_size=20), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    source = records_of(folder, *(b"".join(map(framed, records)) for records in files))
    assert everything(source) == [*itertools.chain(*files)]
    back = np.arange(len(source))[::-1]
    assert source.read(back) == [*itertools.chain(*files)][::-1]


def test_records_longer_than_the_window_that_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [bytes([k]) * (k * 7) for k in range(50)]
    windows = LocalFile.windows
    monkeypatch.setattr(LocalFile, "windows", lambda self: windows(self, 64))
    assert everything(records_of(tmp_path, b"".join(map(framed, records)))) == records


def test_compressed_files_are_read_like_plain_ones(tmp_path: Path) -> None:
    plain = b"".join(framed(bytes([k]) * 100) for k in range(20))
    source = records_of(
        tmp_path,
        plain,
        gzip.compress(plain),
        zlib.compress(plain),
        gzip.compress(plain) + gzip.compress(plain),
    )
    assert len(source) == 100
    assert everything(source)[:20] == everything(source)[80:]


def test_a_damaged_record_is_named_with_its_place(tmp_path: Path) -> None:
    content = bytearray(framed(b"one") + framed(b"two") + framed(b"three"))
    content[len(framed(b"one")) + 12] ^= 1
    source = records_of(tmp_path, bytes(content))
    assert source.read(np.asarray([0, 2])) == [b"one", b"three"]
    with pytest.raises(BadRecord, match=r"Record 1 \(.*part-0, offset 31\) is bad: its checksum"):
        source.read(np.asarray([0, 1]))


def test_a_truncated_file_ends_with_one_bad_record(tmp_path: Path) -> None:
    source = records_of(tmp_path, framed(b"one") + framed(b"two" * 20)[:-9], framed(b"three"))
    assert (len(source), source.damaged_count) == (3, 1)
    with pytest.raises(BadRecord, match="ends inside of it"):
        source.read(np.asarray([1]))
    assert source.read(np.asarray([2])) == [b"three"]


def test_after_a_damaged_length_nothing_is_guessed(tmp_path: Path) -> None:
    content = bytearray(framed(b"one") + framed(b"two") + framed(b"three"))
    content[len(framed(b"one"))] ^= 1
    source = records_of(tmp_path, bytes(content))
    assert (len(source), source.damaged_count) == (2, 1)
    with pytest.raises(BadRecord, match="checksum of its length"):
        source.read(np.asarray([1]))


def test_a_missing_file_counts_as_one_bad_record(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(framed(b"one"))
    cache = Cache(tmp_path / "cache")
    source = Records(find([tmp_path / "there", tmp_path / "gone"], cache), TFRecord(), cache)
    assert len(source) == 2
    with pytest.raises(BadRecord, match="the file is missing"):
        source.read(np.asarray([1]))


def test_a_pattern_without_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No file matches"):
        find(tmp_path / "*.tfrecord", Cache(tmp_path / "cache"))


def test_a_changed_file_is_indexed_anew(tmp_path: Path) -> None:
    assert len(records_of(tmp_path, framed(b"one"))) == 1
    assert len(records_of(tmp_path, framed(b"one") + framed(b"two"))) == 2


def test_the_fingerprint_tells_data_sets_apart_but_not_folders(tmp_path: Path) -> None:
    for name, count in (("a", 2), ("b", 2), ("c", 3)):
        (tmp_path / name).mkdir()
        records_of(tmp_path / name, framed(b"x") * count)
    a, b, c = (
        records_of(tmp_path / name, framed(b"x") * n).fingerprint
        for name, n in (("a", 2), ("b", 2), ("c", 3))
    )
    assert a == b != c


def test_lines(tmp_path: Path) -> None:
    source = records_of(tmp_path, b"one\ntwo\n\nthree", b"", b"four\n", layout=LineRecords())
    assert everything(source) == [b"one", b"two", b"three", b"four"]


def test_csv_rows_may_span_lines(tmp_path: Path) -> None:
    source = records_of(
        tmp_path, b'a,b\n1,"x\ny"\n,"say ""hi"""\n', layout=LineRecords(quotes=True, header=True)
    )
    lines = everything(source)
    assert are_numbers(lines, ["a", "b"]) == [True, False]
    rows = [csv_rows(["a", "b"], [True, False])(line) for line in lines]
    assert (rows[0]["a"], rows[0]["b"], rows[1]["b"]) == (np.float32(1), "x\ny", 'say "hi"')
    assert np.isnan(rows[1]["a"])


@pytest.mark.parametrize("window", [1, 2, 3, 5, 64])
def test_lines_end_in_any_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    windows = LocalFile.windows
    monkeypatch.setattr(LocalFile, "windows", lambda self: windows(self, window))
    source = records_of(tmp_path, b"one\r\n\r\ntwo\n\r\nth\rree\r\n", layout=LineRecords())
    assert everything(source) == [b"one", b"two", b"th\rree"]


def test_a_line_that_is_no_text_does_not_decide_what_columns_are() -> None:
    assert are_numbers([b"1,x", b"\xff\xfe", b"2,y"], ["a", "b"]) == [True, False]


def test_a_copy_that_others_needed_the_room_of_is_made_again(tmp_path: Path) -> None:
    made = []

    def make() -> Path:
        path = tmp_path / f"copy-{len(made)}"
        path.write_bytes(b"0123456789")
        made.append(path)
        if len(made) in (2, 3):  # gone before it is looked at
            path.unlink()
        return path

    copy = CachedFile(make, "name", "1")
    made[0].unlink()
    assert copy.read(2, 5) == b"234"
    assert len(made) == 4


def test_a_copy_that_is_always_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{tmp_path}/gone, a file of the cache, .* SYRTOS_CACHE"):
        CachedFile(lambda: tmp_path / "gone", "name", "1")
    (tmp_path / "gone").write_bytes(b"0123456789")
    copy = CachedFile(lambda: tmp_path / "gone", "name", "1")
    (tmp_path / "gone").unlink()
    with pytest.raises(DataError, match="was gone each time"):
        copy.read(2, 5)


# -- workers that see different files, as on the hosts of a sharded channel ------------------------


def read(folder: str) -> list[str]:
    """What a worker reads in an epoch, after the fingerprint."""
    comm, place = world.current().comm, Path(folder)
    cache = Cache(place / f"cache-{comm.rank}")
    source = Records(
        find([place / name for name in ("ab", "bc")[comm.rank]], cache), TFRecord(), cache, comm
    )
    loader = Loader(
        source, lambda records: np.asarray(records), 4, 5, BadRecords("fail", 0, len(source))
    )
    rows = [
        row
        for chunk in loader.chunks(loader.plan(), comm.rank, comm.size)
        for row in chunk.data.tolist()
    ]
    return [source.fingerprint, *(row.decode() for row in rows)]


def test_they_read_them_all_together(tmp_path: Path) -> None:
    """Rank 0 sees a and b, rank 1 b and c."""
    for name in "abc":
        (tmp_path / name).write_bytes(b"".join(framed(f"{name}{k}".encode()) for k in range(7)))
    (one, *first), (other, *second) = run_world(2, read, str(tmp_path))
    assert one == other
    assert sorted(first + second) == sorted(f"{name}{k}" for name in "abc" for k in range(7))
    assert {row[0] for row in first} == {"a", "b"}
    assert {row[0] for row in second} == {"b", "c"}


def misses(folder: str) -> list[int]:
    """How many records there are, and how many are bad: rank 0 names one file that is there, and one that no worker sees."""
    comm, place = world.current().comm, Path(folder)
    cache = Cache(place / f"cache-{comm.rank}")
    names = (["a", "nowhere", "b"], ["b", "nowhere", "c"])[comm.rank]
    source = Records(find([place / name for name in names], cache), TFRecord(), cache, comm)
    return [len(source), source.damaged_count]


def test_a_file_that_no_worker_sees_is_a_bad_record(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(framed(b"x") * 2)
    assert run_world(2, misses, str(tmp_path)) == [[7, 1], [7, 1]]
