"""Data sets in S3 when the way there is bad: a real server process, behind a proxy that breaks some answers."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import s3

from framing import framed
from syrtos.data import remote
from syrtos.data.cache import Cache
from syrtos.data.files import MissingFile
from syrtos.data.find import find
from syrtos.data.records import Records
from syrtos.data.sources import BadRecord
from syrtos.data.tfrecord import TFRecord
from syrtos.errors import DataError, OutOfReachError

RECORDS = [
    bytes([k % 251]) * 5000 for k in range(3000)
]  # 15 MB: several pieces in each of two files


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with s3.server() as port:
        for name, part in (("part-0", RECORDS[:2000]), ("part-1", RECORDS[2000:])):
            s3.put(port, "bucket", f"train/{name}", b"".join(map(framed, part)))
        s3.put(port, "bucket", "train/_SUCCESS", b"")
        yield port


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "y"),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    remote._store.cache_clear()
    yield
    remote._store.cache_clear()


def through(
    proxy: s3.Proxy,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    pattern: str = "s3://bucket/train/",
) -> Records:
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    cache = Cache(folder)
    return Records(find(pattern, cache), TFRecord(), cache)


def some_go_wrong(proxy: s3.Proxy, path: str, number: int) -> str | None:
    return {1: "503", 3: "truncate", 6: "slow", 7: "503"}.get(number % 8)


def test_all_records_arrive_whatever_goes_wrong(
    port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proxy = s3.Proxy(port, some_go_wrong)
    source = through(proxy, monkeypatch, tmp_path)
    assert source.read(np.arange(3000)) == RECORDS
    assert all(proxy.seen[fault] for fault in ("503", "truncate", "slow")), proxy.seen
    proxy.close()


def test_what_was_read_once_is_read_from_this_host(
    port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proxy = s3.Proxy(port)
    assert through(proxy, monkeypatch, tmp_path).read(np.arange(3000)) == RECORDS
    sent = proxy.sent
    assert sent == sum(len(framed(record)) for record in RECORDS)
    again = through(proxy, monkeypatch, tmp_path)
    assert again.read(np.arange(3000)[::-1]) == RECORDS[::-1]
    assert proxy.sent == sent
    proxy.close()


def test_a_server_that_never_answers_well_is_named(
    port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(remote, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(remote, "_LONGEST_PAUSE", 0.05)
    proxy = s3.Proxy(port, lambda *_: "503")
    with pytest.raises(
        OutOfReachError, match=r"s3://bucket/train/part-0 could not be read in 8 tries"
    ):
        through(proxy, monkeypatch, tmp_path)
    proxy.close()


def test_a_damaged_copy_is_fetched_again(
    port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proxy = s3.Proxy(port)
    source = through(proxy, monkeypatch, tmp_path)
    source.read(np.arange(3000))
    for path in tmp_path.glob("??/*"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    assert source.read(np.arange(3000)) == RECORDS
    proxy.close()


def test_a_record_that_is_damaged_in_the_store_is_bad(
    port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = bytearray(framed(b"one") + framed(b"two"))
    content[-6] ^= 1
    s3.put(port, "bucket", "damaged", bytes(content))
    proxy = s3.Proxy(port)
    source = through(proxy, monkeypatch, tmp_path, "s3://bucket/damaged")
    with pytest.raises(BadRecord, match="s3://bucket/damaged, offset 31"):
        source.read(np.asarray([1]))
    proxy.close()


def test_patterns_and_missing_objects(
    port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    cache = Cache(tmp_path)
    names = [file.name for file in find("s3://bucket/train/part-*", cache)]
    assert names == ["s3://bucket/train/part-0", "s3://bucket/train/part-1"]
    assert [file.name for file in find("s3://bucket/train", cache)] == names
    assert isinstance(
        find(["s3://bucket/train/part-0", "s3://bucket/train/part-7"], cache)[1], MissingFile
    )
    with pytest.raises(DataError, match="part-7 does not exist"):
        find("s3://bucket/train/part-7", cache)
    with pytest.raises(DataError, match="No file matches"):
        find("s3://bucket/nothing/*", cache)


def test_files_of_a_web_server(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "part").write_bytes(b"".join(map(framed, RECORDS[:100])))
    handler = functools.partial(Ranges, directory=str(tmp_path / "web"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cache = Cache(tmp_path / "cache")
    source = Records(
        find(f"http://127.0.0.1:{server.server_address[1]}/part", cache), TFRecord(), cache
    )
    assert source.read(np.arange(100)) == RECORDS[:100]
    server.shutdown()
    server.server_close()


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Python's own server knows no ranges."""

    def do_GET(self) -> None:
        content = Path(self.translate_path(self.path)).read_bytes()
        first, last = (
            int(part) for part in self.headers["Range"].removeprefix("bytes=").split("-")
        )
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.wfile.write(content[first : last + 1])

    def log_message(self, format: str, *args: object) -> None:
        return
