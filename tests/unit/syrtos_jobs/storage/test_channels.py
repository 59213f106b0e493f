"""What instances read: whole, in shares, shuffled, linked, streamed."""

from __future__ import annotations

import errno
import gzip
import json
import os
import random
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from syrtos.errors import DataError, SyrtosError
from syrtos_jobs.requests.request import InputChannel
from syrtos_jobs.storage import channels
from syrtos_jobs.storage.channels import Pipe
from syrtos_jobs.storage.objects import FolderStore
from syrtos_jobs.storage.storage_uris import StorageURIs


@pytest.fixture
def places(tmp_path: Path) -> StorageURIs:
    return StorageURIs(FolderStore(tmp_path / "objects"))


def put(places: StorageURIs, folder: Path, **contents: bytes | str) -> None:
    for key, content in contents.items():
        (folder / "content").write_bytes(
            content if isinstance(content, bytes) else content.encode()
        )
        places.upload(folder / "content", f"s3://bucket/{key}")


def channel(uri: str = "s3://bucket/data/", **facts: Any) -> InputChannel:
    usual: dict[str, Any] = {
        "name": "train", "kind": "S3Prefix", "mode": "File", "sharded": False, "record_io": False, "gzip": False,
        "seed": None, "attributes": (), "config": {},
    }  # fmt: skip
    return InputChannel(uri=uri, **(usual | facts))


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def order(
    places: StorageURIs, wanted: InputChannel, host: int = 0, hosts: int = 1, epoch: int = 0
) -> list[str]:
    return [source.name for source in channels.sources(places, wanted, host, hosts, epoch)]


def test_a_folder_is_filled(places: StorageURIs, tmp_path: Path) -> None:
    put(places, tmp_path, **{"data/a": "A", "data/deep/er/b": "B", "database": "no"})
    assert channels.provide(places, channel(), 0, 1, tmp_path / "ml") == 2
    assert files(tmp_path / "ml") == {"a": "A", "deep/er/b": "B"}
    with pytest.raises(DataError, match="There is nothing under"):
        channels.provide(places, channel("s3://bucket/none/"), 0, 1, tmp_path / "ml")


def test_keys_that_no_folder_can_hold_are_the_users_error(
    places: StorageURIs, tmp_path: Path
) -> None:
    """S3 has no folders: an object may be called as another one's folder."""
    put(places, tmp_path, **{"data/a": "A", "data/a/b": "B"})
    with pytest.raises(SyrtosError):
        channels.provide(places, channel(), 0, 1, tmp_path / "ml")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 12),
    hosts=st.integers(1, 4),
    seed=st.none() | st.integers(-5, 5),
    epoch=st.integers(0, 3),
)
def test_shards_are_a_partition(
    tmp_path: Path, count: int, hosts: int, seed: int | None, epoch: int
) -> None:
    folder = tmp_path / f"{count}"
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number:02}").touch()
    places = StorageURIs(FolderStore(tmp_path / "objects"))
    wanted = channel(folder.as_uri(), sharded=True, seed=seed)
    if count < hosts:
        with pytest.raises(DataError, match=f"algo-{count + 1} would get none"):
            order(places, wanted, count, hosts, epoch)
        return
    shares = [order(places, wanted, host, hosts, epoch) for host in range(hosts)]
    assert sorted(name for share in shares for name in share) == [
        f"{number:02}" for number in range(count)
    ]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    if seed is None:
        assert all(share == sorted(share) for share in shares)


def test_the_order_is_a_new_one_each_epoch_and_the_same_on_all_hosts(
    places: StorageURIs, tmp_path: Path
) -> None:
    put(places, tmp_path, **{f"data/{number:02}": "x" for number in range(12)})
    wanted = channel(seed=7)
    epochs = [order(places, wanted, epoch=epoch) for epoch in range(4)]
    assert len({tuple(one) for one in epochs}) == 4
    assert all(sorted(one) == [f"{number:02}" for number in range(12)] for one in epochs)
    assert [order(places, wanted, 1, 3, epoch) for epoch in range(4)] == epochs
    assert order(places, channel(seed=8)) != epochs[0]
    assert order(places, channel()) == sorted(epochs[0])


def test_a_manifest_names_its_objects(places: StorageURIs, tmp_path: Path) -> None:
    text = json.dumps([{"prefix": "s3://bucket/data/"}, "b", "deep/c"])
    put(
        places,
        tmp_path,
        **{
            "list.json": text,
            "data/a": "A",
            "data/b": "B",
            "data/deep/c": "C",
            "data/deep/c2": "no",
        },
    )
    wanted = channel("s3://bucket/list.json", kind="ManifestFile")
    assert order(places, wanted) == ["b", "deep/c"]
    assert channels.provide(places, wanted, 0, 1, tmp_path / "ml") == 2
    assert files(tmp_path / "ml") == {"b": "B", "deep/c": "C"}
    assert order(
        places, channel("s3://bucket/list.json", kind="ManifestFile", sharded=True), 1, 2
    ) == ["deep/c"]


def test_a_manifest_names_no_neighbours(places: StorageURIs, tmp_path: Path) -> None:
    """A name in a manifest is one of an object, not a prefix."""
    text = json.dumps([{"prefix": "s3://bucket/data/"}, "part-1"])
    put(places, tmp_path, **{"list.json": text, "data/part-10": "another"})
    with pytest.raises(DataError):
        order(places, channel("s3://bucket/list.json", kind="ManifestFile"))


@pytest.mark.parametrize("name", ["../../up", "/etc/passwd", "deep/../../up", ".."])
def test_a_manifest_can_not_lead_out(places: StorageURIs, tmp_path: Path, name: str) -> None:
    text = json.dumps([{"prefix": "s3://bucket/data/"}, name])
    put(places, tmp_path, **{"list.json": text, f"data/{name}": "X"})
    with pytest.raises(DataError):
        channels.provide(
            places, channel("s3://bucket/list.json", kind="ManifestFile"), 0, 1, tmp_path / "ml"
        )
    assert not (tmp_path / "up").exists()


def test_links_outlive_the_object(places: StorageURIs, tmp_path: Path) -> None:
    put(places, tmp_path, **{"data/a": "A", "data/deep/b": "B"})
    assert channels.provide(places, channel(mode="FastFile"), 0, 1, tmp_path / "ml") == 2
    (source,) = places.under("s3://bucket/data/a")
    assert source.local is not None
    assert (tmp_path / "ml" / "a").samefile(source.local)
    places.remove("s3://bucket/data/a")
    put(places, tmp_path, **{"data/deep/b": "another"})
    assert files(tmp_path / "ml") == {"a": "A", "deep/b": "B"}
    channels.clean(tmp_path / "ml")
    assert files(tmp_path / "ml") == {}
    assert places.text("s3://bucket/data/deep/b") == "another"


def test_a_link_to_another_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: StorageURIs
) -> None:
    put(places, tmp_path, **{"data/a": "A"})

    def refused(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    channels.provide(places, channel(mode="FastFile"), 0, 1, tmp_path / "ml")
    assert (tmp_path / "ml" / "a").is_symlink()
    assert files(tmp_path / "ml") == {"a": "A"}


@given(st.binary(max_size=40))
def test_record_io(record: bytes) -> None:
    frame = channels.frame_record(record)
    magic, length = struct.unpack_from("<II", frame)
    assert (magic, length) == (0xCED7230A, len(record))
    assert frame[8 : 8 + length] == record
    assert len(frame) % 4 == 0
    assert set(frame[8 + length :]) <= {0}
    assert len(frame) - 8 - length < 4


# -- pipes -------------------------------------------------------------------------------------------------


class Reader:
    """Reads pipes as scripts do, in threads that can't hold a test up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(4)

    def epoch(self, number: int, most: int = -1) -> bytes:
        return self.begun(number, most).result(timeout=10)

    def begun(self, number: int, most: int = -1) -> Future[bytes]:
        return self._pool.submit(self._read, self._folder / f"train_{number}", most)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _read(path: Path, most: int) -> bytes:
        deadline = time.monotonic() + 5
        while True:  # an open that waits for a writer would never end
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            found = b""
            while time.monotonic() < deadline:
                try:
                    piece = os.read(descriptor, 65536 if most < 0 else most - len(found))
                except BlockingIOError:
                    time.sleep(0.005)
                    continue
                if piece:
                    found += piece
                elif found:
                    break  # its end
                else:
                    time.sleep(0.005)  # no writer yet
                if 0 <= most <= len(found):
                    break
            os.close(descriptor)
            return found


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    (tmp_path / "ml").mkdir()
    found = Reader(tmp_path / "ml")
    yield found
    found.close()


def streamed(
    places: StorageURIs,
    tmp_path: Path,
    reader: Reader,
    epochs: int = 1,
    host: int = 0,
    hosts: int = 1,
    **facts: Any,
) -> list[bytes]:
    pipe = Pipe(places, channel(mode="Pipe", **facts), host, hosts, tmp_path / "ml")
    try:
        found = [reader.epoch(number) for number in range(epochs)]
    finally:
        pipe.close()
    assert pipe.error is None
    return found


def test_epochs_of_a_pipe(places: StorageURIs, tmp_path: Path, reader: Reader) -> None:
    large = os.urandom(300_000)
    put(places, tmp_path, **{"data/a": large, "data/b": b"end"})
    assert streamed(places, tmp_path, reader, 3) == [large + b"end"] * 3


def test_a_real_open_waits_for_the_data(
    places: StorageURIs, tmp_path: Path, reader: Reader
) -> None:
    put(places, tmp_path, **{"data/a": b"content"})
    found: list[bytes] = []
    pipe = Pipe(places, channel(mode="Pipe"), 0, 1, tmp_path / "ml")

    def script() -> None:
        found.extend((tmp_path / "ml" / f"train_{epoch}").read_bytes() for epoch in range(2))

    thread = threading.Thread(target=script, daemon=True)
    thread.start()
    thread.join(10)
    pipe.close()
    assert found == [b"content"] * 2


def test_a_reader_that_stops_early_gets_the_next_epoch(
    places: StorageURIs, tmp_path: Path, reader: Reader
) -> None:
    large = os.urandom(5_000_000)
    put(places, tmp_path, **{"data/a": large})
    pipe = Pipe(places, channel(mode="Pipe"), 0, 1, tmp_path / "ml")
    assert reader.epoch(0, 10) == large[:10]
    assert reader.epoch(1) == large
    pipe.close()
    assert pipe.error is None


def test_a_reader_of_small_data_that_stops_early(
    places: StorageURIs, tmp_path: Path, reader: Reader
) -> None:
    put(places, tmp_path, **{"data/a": b"0123456789"})
    pipe = Pipe(places, channel(mode="Pipe"), 0, 1, tmp_path / "ml")
    assert reader.epoch(0, 4) == b"0123"
    assert reader.epoch(1) == b"0123456789"
    pipe.close()


def test_a_pipe_that_nobody_reads_ends(places: StorageURIs, tmp_path: Path, reader: Reader) -> None:
    put(places, tmp_path, **{"data/a": b"x"})
    pipe = Pipe(places, channel(mode="Pipe"), 0, 1, tmp_path / "ml")
    began = time.monotonic()
    pipe.close()
    assert time.monotonic() - began < 30
    assert pipe.error is None


def test_each_object_is_a_record(places: StorageURIs, tmp_path: Path, reader: Reader) -> None:
    put(places, tmp_path, **{"data/a": b"one", "data/b": b"", "data/c": b"three"})
    wanted = b"".join(map(channels.frame_record, (b"one", b"", b"three")))
    assert streamed(places, tmp_path, reader, record_io=True) == [wanted]


def test_gzip_with_several_members(places: StorageURIs, tmp_path: Path, reader: Reader) -> None:
    large = os.urandom(2_500_000)  # more than one piece
    put(
        places,
        tmp_path,
        **{
            "data/a": gzip.compress(large) + gzip.compress(b"second"),
            "data/b": gzip.compress(b"third"),
        },
    )
    assert streamed(places, tmp_path, reader, gzip=True) == [large + b"secondthird"]
    for old in (tmp_path / "ml").iterdir():
        old.unlink()
    (records,) = streamed(places, tmp_path, reader, gzip=True, record_io=True)
    assert records == channels.frame_record(large + b"second") + channels.frame_record(b"third")


@pytest.mark.parametrize(
    "damaged",
    [gzip.compress(b"x" * 1000)[:-12], b"no gzip", gzip.compress(b"x")[:-4] + b"\0\0\0\0"],
    ids=[
        "cut",
        "no gzip",
        "another length",
    ],  # the time is in the data: two processes would collect different tests
)
def test_damaged_gzip_is_noticed(
    places: StorageURIs, tmp_path: Path, reader: Reader, damaged: bytes
) -> None:
    """A stream that just ends early looks like less data."""
    put(places, tmp_path, **{"data/a": damaged})
    pipe = Pipe(places, channel(mode="Pipe", gzip=True), 0, 1, tmp_path / "ml")
    started = reader.begun(0)
    deadline = time.monotonic() + 3
    while pipe.error is None and time.monotonic() < deadline:
        time.sleep(0.01)
    pipe.close()
    assert started
    assert pipe.error is not None


def test_shares_and_seeds_in_pipes(places: StorageURIs, tmp_path: Path, reader: Reader) -> None:
    put(places, tmp_path, **{f"data/{letter}": letter for letter in "abcdef"})
    shares = []
    for host in range(2):
        epochs = streamed(places, tmp_path, reader, 4, host, 2, sharded=True, seed=3)
        assert len(set(epochs)) > 1
        shares.append(epochs)
        for old in (tmp_path / "ml").iterdir():
            old.unlink()
    assert all(sorted(one + two) == list(b"abcdef") for one, two in zip(*shares, strict=True))


LINES: Sequence[dict[str, Any]] = [
    {"source-ref": f"s3://bucket/images/{number}", "label": number, "text": f"é{number}"}
    for number in range(4)
]


def augmented(places: StorageURIs, tmp_path: Path) -> None:
    text = "".join(json.dumps(line) + "\n" for line in LINES)
    put(
        places,
        tmp_path,
        **{"list": text},
        **{f"images/{number}": bytes([number]) * 3 for number in range(4)},
    )


@pytest.mark.parametrize("record_io", [True, False])
def test_an_augmented_manifest(
    places: StorageURIs, tmp_path: Path, reader: Reader, record_io: bool
) -> None:
    augmented(places, tmp_path)
    facts: dict[str, Any] = {
        "kind": "AugmentedManifestFile",
        "uri": "s3://bucket/list",
        "record_io": record_io,
    }
    found = streamed(
        places, tmp_path, reader, 2, attributes=("source-ref", "label", "text"), **facts
    )
    parts = [part for n in range(4) for part in (bytes([n]) * 3, str(n).encode(), f"é{n}".encode())]
    wanted = b"".join(channels.frame_record(part) if record_io else part for part in parts)
    assert found == [wanted, wanted]


def test_an_augmented_manifest_is_shuffled_by_lines(
    places: StorageURIs, tmp_path: Path, reader: Reader
) -> None:
    augmented(places, tmp_path)
    facts: dict[str, Any] = {"kind": "AugmentedManifestFile", "uri": "s3://bucket/list", "seed": 5}
    found = streamed(places, tmp_path, reader, 6, attributes=("label",), **facts)
    assert len(set(found)) > 1
    assert all(sorted(epoch) == list(b"0123") for epoch in found)


def test_an_augmented_manifest_is_shared_out(
    places: StorageURIs, tmp_path: Path, reader: Reader
) -> None:
    augmented(places, tmp_path)
    facts: dict[str, Any] = {
        "kind": "AugmentedManifestFile",
        "uri": "s3://bucket/list",
        "sharded": True,
    }
    shares = []
    for host in range(2):
        shares += streamed(places, tmp_path, reader, 1, host, 2, attributes=("label",), **facts)
        for old in (tmp_path / "ml").iterdir():
            old.unlink()
    assert sorted(b"".join(shares)) == list(b"0123")


def test_what_is_missing_is_said(places: StorageURIs, tmp_path: Path, reader: Reader) -> None:
    put(places, tmp_path, **{"list": json.dumps({"source-ref": "s3://bucket/gone"})})
    wanted = channel(
        "s3://bucket/list", kind="AugmentedManifestFile", mode="Pipe", attributes=("source-ref",)
    )
    pipe = Pipe(places, wanted, 0, 1, tmp_path / "ml")
    reader.begun(0)
    deadline = time.monotonic() + 3
    while pipe.error is None and time.monotonic() < deadline:
        time.sleep(0.01)
    pipe.close()
    assert isinstance(pipe.error, DataError)


@given(st.lists(st.binary(max_size=200), max_size=4), st.integers(1, 50), st.randoms())
def test_gzip_in_any_pieces(members: list[bytes], step: int, rng: random.Random) -> None:
    packed = b"".join(gzip.compress(member) for member in members)
    pieces = []
    while packed:
        cut = rng.randint(1, step)
        pieces.append(packed[:cut])
        packed = packed[cut:]
    assert b"".join(channels._gunzip(iter(pieces))) == b"".join(members)
