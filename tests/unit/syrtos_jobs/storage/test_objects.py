"""Objects in a folder, and in a real S3 behind it: the same behaviour."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from syrtos.errors import ConfigurationError, DataError
from syrtos_jobs.storage.objects import FolderStore, ObjectStore
from syrtos_jobs.storage.remote_store import RemoteStore

KEYS = [
    "a",
    "a/b",
    "a/b/c",
    "ab",
    "b c+d%20&<e>.txt",
    "x/",
    "é/ü",
    "日本/\U0001f600",
    "~",
    "%",
    "_",
    "a" * 900,
]


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """The address of an S3 server process."""
    sys.path.append(str(Path(__file__).parents[2] / "faults"))
    import s3

    with s3.server() as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(params=["folder", "remote"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ObjectStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "objects")
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "y"),
        ("AWS_DEFAULT_REGION", "eu-west-1"),
    ):
        monkeypatch.setenv(name, value)
    return RemoteStore(tmp_path / "objects", request.getfixturevalue("moto"))


@pytest.fixture
def bucket(store: ObjectStore) -> str:
    name = f"bucket-{time.time_ns()}"
    assert store.make_bucket(name)
    return name


def put(
    store: ObjectStore, bucket: str, key: str, content: bytes, headers: dict[str, str] | None = None
) -> None:
    file = store.incoming()
    file.write_bytes(content)
    store.put(bucket, key, file, "0" * 32, headers or {})
    assert not file.exists()


def content(
    store: ObjectStore, bucket: str, key: str, start: int = 0, stop: int | None = None
) -> bytes:
    entry = store.head(bucket, key)
    assert entry is not None
    return b"".join(store.read(bucket, entry, start, entry.size if stop is None else stop))


def test_buckets(store: ObjectStore, bucket: str) -> None:
    assert not store.make_bucket(bucket)
    assert store.has_bucket(bucket)
    assert bucket in [name for name, _ in store.buckets()]
    assert not store.has_bucket("another-one")
    store.remove_bucket(bucket)
    assert not store.has_bucket(bucket)


@pytest.mark.parametrize("key", KEYS)
def test_what_was_put_is_read(store: ObjectStore, bucket: str, key: str) -> None:
    put(store, bucket, key, b"0123456789", {"content-type": "text/x", "x-amz-meta-who": "me"})
    entry = store.head(bucket, key)
    assert entry is not None
    assert (entry.key, entry.size) == (key, 10)
    assert {"content-type": "text/x", "x-amz-meta-who": "me"}.items() <= entry.headers.items()
    assert abs(entry.modified - time.time()) < 60
    assert [found.key for found in store.all(bucket, key)] == [key]
    assert content(store, bucket, key) == b"0123456789"
    store.delete(bucket, key)
    assert store.head(bucket, key) is None
    store.delete(bucket, key)


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 1), (3, 7), (9, 10), (10, 10), (0, 10)])
def test_ranges(store: ObjectStore, bucket: str, start: int, stop: int) -> None:
    put(store, bucket, "k", b"0123456789")
    assert content(store, bucket, "k", start, stop) == b"0123456789"[start:stop]


def test_empty_and_large_objects(store: ObjectStore, bucket: str, tmp_path: Path) -> None:
    put(store, bucket, "empty", b"")
    assert content(store, bucket, "empty") == b""
    large = os.urandom((3 << 20) + 17)
    (tmp_path / "large").write_bytes(large)
    store.upload(bucket, "large", tmp_path / "large")
    assert (
        content(store, bucket, "large", 1_000_001, (2 << 20) + 5)
        == large[1_000_001 : (2 << 20) + 5]
    )
    entry = store.head(bucket, "large")
    assert entry is not None
    store.fetch(bucket, entry, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == large
    assert (tmp_path / "large").read_bytes() == large


def test_a_put_replaces(store: ObjectStore, bucket: str) -> None:
    put(store, bucket, "k", b"old content")
    put(store, bucket, "k", b"new", {"content-type": "a/b"})
    assert content(store, bucket, "k") == b"new"
    assert len(store.list(bucket, "", "", 10)) == 1


def test_lists_are_in_order_of_keys_with_prefix_and_place(store: ObjectStore, bucket: str) -> None:
    keys = [
        "B",
        "a",
        "a%b",
        "a%c",
        "a/1",
        "a/10",
        "a/2",
        "a0",
        "aXb",
        "a_b",
        "b",
        "é",
        "\U0001f600",
    ]
    for key in reversed(keys):
        put(store, bucket, key, key.encode())

    def listed(prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        return [entry.key for entry in store.list(bucket, prefix, after, limit)]

    assert listed() == sorted(keys, key=str.encode)
    assert listed("a/") == ["a/1", "a/10", "a/2"]
    assert listed("a%") == ["a%b", "a%c"]
    assert listed("a_") == ["a_b"]
    assert listed("a/1") == ["a/1", "a/10"]
    assert listed("a", "a/1", 3) == ["a/10", "a/2", "a0"]
    assert listed("\U0001f600") == ["\U0001f600"]
    assert listed("c") == []
    assert {entry.key: entry.size for entry in store.list(bucket, "é", "", 10)} == {"é": 2}
    assert [entry.key for entry in store.all(bucket, "a/")] == ["a/1", "a/10", "a/2"]


def test_a_missing_bucket_holds_nothing(store: ObjectStore) -> None:
    """A channel or a checkpoint prefix in it is one that has no objects, not a failure inside."""
    assert store.head("not-there-at-all", "k") is None
    assert store.list("not-there-at-all", "", "", 10) == []
    assert list(store.all("not-there-at-all", "p/")) == []


@pytest.mark.parametrize(
    "name", ["A", "ab", "a..b", "-ab", "ab-", "a/b", "../..", "a" * 64, "ä" * 5, ""]
)
def test_names_that_no_bucket_has(tmp_path: Path, name: str) -> None:
    store = FolderStore(tmp_path / "objects")
    with pytest.raises(ConfigurationError, match="no name for a bucket"):
        store.make_bucket(name)
    assert store.buckets() == []


def test_what_head_found_is_what_is_read(tmp_path: Path) -> None:
    """An answer's length and checksum are of the old object: its bytes can't be of the new one."""
    store = FolderStore(tmp_path / "objects")
    store.make_bucket("bucket")
    put(store, "bucket", "k", b"old content")
    entry = store.head("bucket", "k")
    assert entry is not None
    put(store, "bucket", "k", b"NEW CONTENT THAT IS LONGER")
    try:
        read = b"".join(store.read("bucket", entry, 0, entry.size))
    except DataError:
        return
    assert read == b"old content"


def test_an_object_that_was_removed_is_said_to_be(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "objects")
    store.make_bucket("bucket")
    put(store, "bucket", "k", b"x")
    entry = store.head("bucket", "k")
    assert entry is not None
    store.delete("bucket", "k")
    with pytest.raises(DataError, match="removed"):
        list(store.read("bucket", entry, 0, 1))


def test_reading_goes_on_when_the_object_is_removed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "objects")
    store.make_bucket("bucket")
    put(store, "bucket", "k", bytes(5 << 20))
    entry = store.head("bucket", "k")
    assert entry is not None
    pieces = store.read("bucket", entry, 0, entry.size)
    first = next(pieces)
    store.delete("bucket", "k")
    assert len(first) + sum(map(len, pieces)) == 5 << 20


def test_old_bytes_are_removed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "objects")
    store.make_bucket("bucket")
    for number in range(5):
        put(store, "bucket", "k", b"%d" % number)
    assert len(list(tmp_path.glob("objects/blobs/*/*"))) == 1
    store.delete("bucket", "k")
    assert list(tmp_path.glob("objects/blobs/*/*")) == []


def test_files_of_objects_can_not_be_written_to(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "objects")
    store.make_bucket("bucket")
    put(store, "bucket", "k", b"x")
    entry = store.head("bucket", "k")
    assert entry is not None
    file = store.local_file(entry)
    assert file is not None
    assert file.stat().st_mode & 0o222 == 0


def test_sweep_removes_abandoned_uploads_and_no_file_of_an_object(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "objects")
    store.make_bucket("bucket")
    put(store, "bucket", "k", b"kept")
    left = store.incoming()
    left.write_bytes(b"left")
    unknown = tmp_path / "objects" / "blobs" / "zz" / "zz00"
    unknown.parent.mkdir()
    unknown.write_bytes(b"an object of which nothing says what it is")
    store.sweep()
    assert left.exists()
    store.sweep(older=-1.0)
    assert not left.exists()
    assert unknown.exists()
    assert content(store, "bucket", "k") == b"kept"


def _lose(index: Path, _store: FolderStore) -> None:
    for path in index.parent.glob("index.sqlite*"):
        path.unlink()


def _empty(index: Path, _store: FolderStore) -> None:
    index.write_bytes(b"")


def _truncate(index: Path, store: FolderStore) -> None:
    store.close()
    os.truncate(index, index.stat().st_size // 2)


def _overwrite(index: Path, store: FolderStore) -> None:
    store.close()
    index.write_bytes(b"\xff" * index.stat().st_size)


def _take_back(index: Path, store: FolderStore) -> None:
    """The index of another day, which names none of the objects."""
    store.close()
    _lose(index, store)
    with sqlite3.connect(index) as older:
        older.execute("CREATE TABLE buckets (name TEXT PRIMARY KEY, created FLOAT)")
        older.execute(
            "CREATE TABLE objects (bucket TEXT, key TEXT, blob TEXT, size INTEGER, etag TEXT,"
            " modified FLOAT, headers JSON, PRIMARY KEY (bucket, key))"
        )
        older.execute("PRAGMA user_version = 1")


@pytest.mark.parametrize("harm", [_lose, _empty, _truncate, _overwrite, _take_back])
def test_an_index_is_made_again_from_the_objects(
    tmp_path: Path, harm: Callable[[Path, FolderStore], None], capsys: pytest.CaptureFixture[str]
) -> None:
    store = FolderStore(tmp_path / "objects")
    store.make_bucket("bucket")
    store.make_bucket("empty")
    headers = {"content-type": "text/x", "x-amz-meta-who": "é"}
    for key in KEYS:
        put(store, "bucket", key, key.encode(), headers)
    put(store, "bucket", "a", b"replaced", headers)
    before = [store.head("bucket", key) for key in KEYS]

    harm(tmp_path / "objects" / "index.sqlite", store)
    again = FolderStore(tmp_path / "objects")
    again.repair()
    again.sweep(older=-1.0)
    assert [again.head("bucket", key) for key in KEYS] == before
    assert [entry.headers for entry in again.all("bucket", "")] == [headers] * len(KEYS)
    assert content(again, "bucket", "a") == b"replaced"
    assert harm is _take_back or [name for name, _ in again.buckets()] == ["bucket", "empty"]
    said = capsys.readouterr().err
    assert "index" in said
    assert said.count(str(tmp_path / "objects" / "index.sqlite")) <= 1, said
    put(again, "bucket", "new", b"n")
    assert content(FolderStore(tmp_path / "objects"), "bucket", "new") == b"n"


def test_an_index_that_is_lost_while_processes_use_it(tmp_path: Path) -> None:
    store, other = FolderStore(tmp_path / "objects"), FolderStore(tmp_path / "objects")
    store.make_bucket("bucket")
    put(store, "bucket", "k", b"1")
    assert other.head("bucket", "k")
    _lose(tmp_path / "objects" / "index.sqlite", store)
    put(store, "bucket", "l", b"2")
    assert [entry.key for entry in other.all("bucket", "")] == ["k", "l"]


def test_objects_of_an_older_version_get_names(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "objects")
    store.make_bucket("bucket")
    put(store, "bucket", "k", b"1")
    store.close()
    index = tmp_path / "objects" / "index.sqlite"
    with sqlite3.connect(index) as older:
        older.execute("PRAGMA user_version = 0")
    for name in ("names", "buckets"):
        shutil.rmtree(tmp_path / "objects" / name)
    FolderStore(tmp_path / "objects").repair()
    _lose(index, store)
    assert content(FolderStore(tmp_path / "objects"), "bucket", "k") == b"1"


def test_what_a_killed_process_has_left_does_not_replace_what_came_after(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "objects")
    store.make_bucket("bucket")
    put(store, "bucket", "k", b"old")
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "objects", kept)
    put(store, "bucket", "k", b"new")
    for name in ("blobs", "names"):
        shutil.copytree(kept / name, tmp_path / "objects" / name, dirs_exist_ok=True)
    store.sweep(older=-1.0)
    assert content(store, "bucket", "k") == b"new"
    assert len(list(tmp_path.glob("objects/blobs/*/*"))) == 1


def test_writers_of_one_key_leave_one_whole_object(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "objects")
    store.make_bucket("bucket")

    def write(number: int) -> None:
        put(FolderStore(tmp_path / "objects"), "bucket", "k", b"%03d" % number * 1000)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(30)))
    found = content(store, "bucket", "k")
    assert found == found[:3] * 1000
    assert len(list(tmp_path.glob("objects/blobs/*/*"))) == 1


_TEXT = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=6
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.sets(_TEXT, max_size=12), prefix=_TEXT, after=_TEXT, limit=st.integers(1, 5))
def test_any_keys_are_listed_as_s3_does(
    tmp_path: Path, keys: set[str], prefix: str, after: str, limit: int
) -> None:
    store = FolderStore(tmp_path / "objects")
    bucket = f"bucket{time.time_ns()}"
    store.make_bucket(bucket)
    for key in keys:
        put(store, bucket, key, b"")
    ordered = sorted(keys, key=str.encode)
    for begin in ("", prefix, prefix[0]):
        wanted = [key for key in ordered if key.startswith(begin) and key.encode() > after.encode()]
        assert [entry.key for entry in store.list(bucket, begin, after, limit)] == wanted[:limit]
