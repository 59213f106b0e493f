"""URIs: what they name, what they may name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.errors import ConfigurationError, DataError, SyrtosError
from syrtos_jobs.storage.objects import FolderStore
from syrtos_jobs.storage.storage_uris import StorageURIs, manifest, safe_name, split


@pytest.fixture
def places(tmp_path: Path) -> StorageURIs:
    store = FolderStore(tmp_path / "objects")
    store.make_bucket("bucket")
    return StorageURIs(store)


def put(places: StorageURIs, folder: Path, *keys: str) -> None:
    for key in keys:
        (folder / "content").write_text(key)
        places.upload(folder / "content", f"s3://bucket/{key}")


def names(places: StorageURIs, uri: str) -> list[str]:
    return [source.name for source in places.under(uri)]


@pytest.mark.parametrize(
    ("uri", "wanted"),
    [
        ("s3://bucket/data/train/", ["a.txt", "deep/b.txt"]),
        ("s3://bucket/data/train", ["a.txt", "deep/b.txt", "train2/c.txt"]),
        ("s3://bucket/data/train/a.txt", ["a.txt"]),
        ("s3://bucket/data/tr", ["train/a.txt", "train/deep/b.txt", "train2/c.txt"]),
        ("s3://bucket/data/", ["train/a.txt", "train/deep/b.txt", "train2/c.txt"]),
        (
            "s3://bucket",
            ["data/train/a.txt", "data/train/deep/b.txt", "data/train2/c.txt", "top.txt"],
        ),
        (
            "s3://bucket/",
            ["data/train/a.txt", "data/train/deep/b.txt", "data/train2/c.txt", "top.txt"],
        ),
        ("s3://bucket/top.txt", ["top.txt"]),
    ],
)
def test_prefixes_mean_what_they_mean_to_s3(
    places: StorageURIs, tmp_path: Path, uri: str, wanted: list[str]
) -> None:
    """A prefix is no folder: it may end in the middle of a name. Folders' own markers are no files."""
    put(
        places,
        tmp_path,
        "data/train/a.txt",
        "data/train/deep/b.txt",
        "data/train2/c.txt",
        "data/train/empty/",
        "top.txt",
    )
    found = places.under(uri)
    assert [source.name for source in found] == wanted
    first = b"".join(found[0].read()).decode()
    assert first.endswith(wanted[0])


def test_a_folder_of_this_machine(places: StorageURIs, tmp_path: Path) -> None:
    folder = tmp_path / "a folder, ü"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "b").write_text("b")
    (folder / "a").write_text("a")
    assert names(places, folder.as_uri()) == ["a", "deep/b"]
    assert names(places, (folder / "a").as_uri()) == ["a"]
    assert names(places, (folder / "deep").as_uri() + "/") == ["b"]
    places.under(folder.as_uri())[1].fetch(tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "b"


@pytest.mark.parametrize(
    "uri", ["s3://bucket/nothing/", "s3://no-bucket/x", "file:///not/there/at/all"]
)
def test_nothing_is_an_error(places: StorageURIs, uri: str) -> None:
    with pytest.raises(DataError, match="There is nothing under"):
        places.under(uri)
    assert not places.exists(uri)


@pytest.mark.parametrize("kind", ["nowhere", "pipe"])
def test_what_is_no_file_is_not_left_out_without_a_word(
    places: StorageURIs, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "data").mkdir()
    odd = tmp_path / "data" / "odd"
    if kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to(kind)
    with pytest.raises(ConfigurationError, match="odd, which is a link to nothing, a pipe"):
        places.under((tmp_path / "data").as_uri())


def test_links_to_folders_are_followed(places: StorageURIs, tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    data.mkdir()
    (elsewhere / "deep" / "a").write_text("a")
    for name in ("one", "two"):
        (data / name).symlink_to(elsewhere)
    assert names(places, data.as_uri()) == ["one/deep/a", "two/deep/a"]
    (elsewhere / "deep" / "back").symlink_to(data)
    with pytest.raises(ConfigurationError, match="back is a link to a folder that holds it"):
        places.under(data.as_uri())


def test_upload_text_and_remove(places: StorageURIs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hällo")
    for uri in ("s3://new-bucket/x/y.json", (tmp_path / "made" / "y.json").as_uri()):
        places.upload(tmp_path / "file", uri)
        assert places.text(uri) == "hällo"
        assert places.exists(uri)
        places.remove(uri)
        assert not places.exists(uri)
        places.remove(uri)
        with pytest.raises(DataError):
            places.text(uri)


def test_text_is_of_the_one_file(places: StorageURIs, tmp_path: Path) -> None:
    put(places, tmp_path, "list.json.bak", "list.json/inside")
    with pytest.raises(DataError, match="There is no"):
        places.text("s3://bucket/list.json")


@pytest.mark.parametrize("key", ["data/../../up", "data//etc/passwd", "data/../up", "data/a/.."])
def test_keys_that_lead_out_of_the_folder(places: StorageURIs, tmp_path: Path, key: str) -> None:
    put(places, tmp_path, key)
    with pytest.raises(DataError, match="lead out"):
        places.under("s3://bucket/data/")


_BAD = [
    "http://169.254.169.254/latest/meta-data/", "https://example.com/x", "ftp://x/y", "s3://", "s3:///key", "/etc/passwd",
    "file://host/etc/passwd", "FILE://other/x", "gs://b/k", "", "s3:bucket/key", "data:,x", "file:relative",
]  # fmt: skip


@pytest.mark.parametrize("uri", _BAD)
def test_other_uris_are_refused(places: StorageURIs, tmp_path: Path, uri: str) -> None:
    restricted = StorageURIs(places.objects, [tmp_path])
    with pytest.raises(ConfigurationError):
        restricted.allow(uri)
    with pytest.raises(SyrtosError):
        restricted.under(uri)
    (tmp_path / "x").touch()
    with pytest.raises(ConfigurationError):
        restricted.upload(tmp_path / "x", uri)


def test_a_bucket_that_can_not_be_is_refused_at_once(places: StorageURIs) -> None:
    """Else a job would train for hours, and fail when it uploads."""
    for uri in ("s3://Not_A_Bucket/x", "s3://a/x", "s3://user@host:80/x"):
        with pytest.raises(ConfigurationError):
            places.allow(uri)


def test_folders_that_are_allowed(places: StorageURIs, tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "allowed-not"
    for folder in (allowed, other):
        folder.mkdir()
        (folder / "file").write_text("x")
    (allowed / "link").symlink_to(other)
    restricted = StorageURIs(places.objects, [allowed.resolve()])
    restricted.allow(allowed.as_uri())
    restricted.allow((allowed / "new" / "file").as_uri())
    # What a link holds is not left out without a word.
    with pytest.raises(ConfigurationError, match="not in a folder"):
        restricted.under(allowed.as_uri())
    for path in (
        other,
        tmp_path,
        Path("/"),
        allowed / ".." / "allowed-not",
        allowed / "link",
        allowed / "link" / "file",
    ):
        uri = f"file://{path}"
        with pytest.raises(ConfigurationError, match="not in a folder"):
            restricted.allow(uri)
        with pytest.raises(ConfigurationError, match="not in a folder"):
            restricted.under(uri)
    with pytest.raises(ConfigurationError, match="not in a folder"):
        restricted.allow(f"file://{allowed}/%2e%2e/allowed-not/file")
    with pytest.raises(ConfigurationError, match="not in a folder"):
        StorageURIs(places.objects, []).allow(allowed.as_uri())


def test_split() -> None:
    assert split("s3://bucket/a/b c") == ("bucket", "a/b c")
    assert split("s3://bucket") == ("bucket", "")
    with pytest.raises(ConfigurationError):
        split("s3:///x")


@given(st.text(max_size=20))
def test_a_safe_name_stays_inside(name: str) -> None:
    try:
        found = safe_name(name)
    except DataError:
        return
    path = Path("/folder") / found
    assert path.is_relative_to("/folder")
    assert ".." not in path.parts
    assert path != Path("/folder")


@pytest.mark.parametrize("name", ["", ".", "..", "/", "a/../b", "a\0", "/a"])
def test_names_that_are_not_safe(name: str) -> None:
    with pytest.raises(DataError):
        safe_name(name)


def test_a_manifest() -> None:
    text = json.dumps([{"prefix": "s3://bucket/p/"}, "a", "b/c"])
    assert manifest(text) == ("s3://bucket/p/", ["a", "b/c"])


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '["a"]', '[{"x": 1}]', "3", '[{"prefix": 1}, "a"]', "[" * 5000]
)
def test_no_manifest(text: str) -> None:
    with pytest.raises(DataError, match="A manifest is a JSON list"):
        manifest(text)


def test_links_out_of_a_folder_that_is_allowed(places: StorageURIs, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    (inside / "deep").mkdir(parents=True)
    outside.write_text("x")
    (inside / "own").write_text("y")
    (inside / "alias").symlink_to(inside / "own")
    closed = StorageURIs(places.objects, [inside])
    assert [one.name for one in closed.under(inside.as_uri())] == ["alias", "own"]
    (inside / "deep" / "link").symlink_to(outside)
    for name in ("", "deep", "deep/link"):
        with pytest.raises(ConfigurationError, match="not in a folder that this service allows"):
            closed.under((inside / name).as_uri())
