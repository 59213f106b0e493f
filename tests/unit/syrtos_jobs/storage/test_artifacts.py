"""What jobs leave, and what they unpack: whole, and only where it belongs."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import random
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from syrtos.errors import DataError, SyrtosError
from syrtos_jobs.storage import artifacts
from syrtos_jobs.storage.artifacts import Checkpoints, UnwritableError
from syrtos_jobs.storage.objects import FolderStore
from syrtos_jobs.storage.storage_uris import StorageURIs


@pytest.fixture
def places(tmp_path: Path) -> StorageURIs:
    return StorageURIs(FolderStore(tmp_path / "objects"))


def write(folder: Path, **contents: str) -> Path:
    for name, content in contents.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


# -- archives ----------------------------------------------------------------------------------------------


def test_pack_and_unpack(tmp_path: Path) -> None:
    one = write(tmp_path / "one", a="1", deep__b="1", same="1")
    two = write(tmp_path / "two", c="2", same="2")
    assert artifacts.pack([one, two], tmp_path / "x.tar.gz") == 4
    artifacts.unpack(tmp_path / "x.tar.gz", tmp_path / "out")
    assert files(tmp_path / "out") == {"a": "1", "deep/b": "1", "c": "2", "same": "2"}
    assert artifacts.pack([two, one], tmp_path / "y.tar.gz") == 4
    artifacts.unpack(tmp_path / "y.tar.gz", tmp_path / "out2")
    assert files(tmp_path / "out2")["same"] == "1"


def test_nothing_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    assert artifacts.pack([tmp_path / "empty"], tmp_path / "x.tar.gz") == 0
    assert not (tmp_path / "x.tar.gz").exists()


def test_links_are_not_followed_out_of_an_output_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("no")
    model = write(tmp_path / "model", a="1")
    (model / "link").symlink_to(tmp_path / "secret")
    (model / "folder").symlink_to(tmp_path)
    assert artifacts.pack([model], tmp_path / "x.tar.gz") == 1


def test_links_inside_of_an_output_folder_are_packed_as_files(tmp_path: Path) -> None:
    """As the caches of model hubs are laid out."""
    model = write(tmp_path / "model", blobs__abc="weights", snap__config="c")
    (model / "snap" / "weights").symlink_to("../blobs/abc")
    (model / "latest").symlink_to("snap")
    (model / "snap" / "self").symlink_to("..")
    (model / "loop").symlink_to("loop")
    (model / "gone").symlink_to("nothing")
    assert artifacts.pack([model], tmp_path / "x.tar.gz") == 5
    artifacts.unpack(tmp_path / "x.tar.gz", tmp_path / "out")
    assert files(tmp_path / "out") == {
        "blobs/abc": "weights",
        "snap/config": "c",
        "snap/weights": "weights",
        "latest/config": "c",
        "latest/weights": "weights",
    }


def test_upload_as_archive_and_file_by_file(places: StorageURIs, tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", same="1", deep__a="1"), write(tmp_path / "two", same="2")
    assert artifacts.upload(places, [one, two], "s3://out/job/output", "model.tar.gz", tmp_path)
    (archive,) = places.under("s3://out/job/output/model.tar.gz")
    archive.fetch(tmp_path / "fetched.tar.gz")
    artifacts.unpack(tmp_path / "fetched.tar.gz", tmp_path / "unpacked")
    assert files(tmp_path / "unpacked") == {"same": "2", "deep/a": "1"}
    assert artifacts.upload(places, [one, two], "s3://out/job/output/model", None, tmp_path)
    assert places.text("s3://out/job/output/model/same") == "2"
    assert places.text("s3://out/job/output/model/deep/a") == "1"
    (tmp_path / "empty").mkdir()
    assert not artifacts.upload(
        places, [tmp_path / "empty"], "s3://out/none", "model.tar.gz", tmp_path
    )
    assert not artifacts.upload(places, [tmp_path / "empty"], "s3://out/none", None, tmp_path)
    assert not places.exists("s3://out/none")


Build = Callable[[tarfile.TarFile], None]


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b"") -> Build:
    def build(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, link, len(content)
        info.mode = 0o4777
        tar.addfile(info, io.BytesIO(content))

    return build


def archive(tmp_path: Path, *members: Build) -> Path:
    path = tmp_path / "bad.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for build in members:
            build(tar)
    return path


@pytest.mark.parametrize(
    "members",
    [
        [member("../flag", content=b"bad")],
        [member("a/../../flag", content=b"bad")],
        [member("link", tarfile.SYMTYPE, "../flag"), member("link", content=b"bad")],
        [member("up", tarfile.SYMTYPE, ".."), member("up/flag", content=b"bad")],
        [member("up", tarfile.SYMTYPE, "/"), member("up/etc/syrtos-flag", content=b"bad")],
        [member("a", tarfile.DIRTYPE), member("a/b", tarfile.SYMTYPE, "../.."), member("a/b/flag", content=b"bad")],
        [member("hard", tarfile.LNKTYPE, "../flag"), member("hard", content=b"bad")],
        [member("x", tarfile.SYMTYPE, "y"), member("y", tarfile.SYMTYPE, "../flag"), member("x", content=b"bad")],
        [member("null", tarfile.CHRTYPE)],
        [member("disk", tarfile.BLKTYPE)],
        [member("pipe", tarfile.FIFOTYPE)],
        [member("hard", tarfile.LNKTYPE, "not-there")],
    ],
)  # fmt: skip
def test_members_that_leave_the_folder_or_are_no_files(
    tmp_path: Path, members: list[Build]
) -> None:
    (tmp_path / "flag").write_text("kept")
    with pytest.raises(DataError, match=r"bad\.tar\.gz"):
        artifacts.unpack(archive(tmp_path, *members), tmp_path / "out")
    assert (tmp_path / "flag").read_text() == "kept"
    assert not Path("/etc/syrtos-flag").exists()


def test_absolute_names_are_inside_or_refused(tmp_path: Path) -> None:
    path = archive(tmp_path, member(f"{tmp_path}/flag", content=b"bad"))
    try:
        artifacts.unpack(path, tmp_path / "out")
    except DataError:
        return
    finally:
        assert not (tmp_path / "flag").exists()
    assert files(tmp_path / "out") == {f"{tmp_path}/flag".lstrip("/"): "bad"}


def test_links_too_long_to_be_resolved_lead_nowhere(tmp_path: Path) -> None:
    """CVE-2025-4517: what realpath(3) gives up on, open(2) follows step by step."""
    for name in ("out", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "flag").write_text("kept")
    folder, path, steps = "d" * 247, "", "abcdefghijklmnop"
    members = []
    for step in steps:
        members += [member(os.path.join(path, folder), tarfile.DIRTYPE)]
        members += [member(os.path.join(path, step), tarfile.SYMTYPE, folder)]
        path = os.path.join(path, folder)
    long = os.path.join("/".join(steps), "l" * 254)
    members += [
        member(long, tarfile.SYMTYPE, "../" * len(steps)),
        member("escape", tarfile.SYMTYPE, f"{long}/../other"),
        member("hard", tarfile.LNKTYPE, "escape/flag"),
        member("hard", content=b"bad"),
    ]
    with contextlib.suppress(DataError):
        artifacts.unpack(archive(tmp_path, *members), tmp_path / "out")
    assert (tmp_path / "other" / "flag").read_text() == "kept"


def test_modes_and_owners_are_ours(tmp_path: Path) -> None:
    artifacts.unpack(archive(tmp_path, member("a", content=b"x")), tmp_path / "out")
    facts = (tmp_path / "out" / "a").stat()
    assert facts.st_mode & 0o7022 == 0
    assert facts.st_uid == os.geteuid()


def test_what_would_be_too_large_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "huge.tar"
    info = tarfile.TarInfo("huge")
    info.size = 9 << 30
    with path.open("wb") as file:
        file.write(info.tobuf())
        file.truncate((9 << 30) + 4096)  # a hole
    began = time.process_time()
    with pytest.raises(DataError, match="more than 8 GiB"):
        artifacts.unpack(path, tmp_path / "out")
    assert time.process_time() - began < 5
    assert not (tmp_path / "out").exists()


def test_sizes_that_are_negative_are_refused(tmp_path: Path) -> None:
    """They would make the sum of all sizes small, or lead an unaware reader round in circles."""
    header = bytearray(tarfile.TarInfo("a").tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = b"\xff" + (-1024 & ((1 << 88) - 1)).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "bad.tar").write_bytes(bytes(header) * 3 + bytes(1024))
    with pytest.raises(DataError, match=r"bad\.tar"):
        artifacts.unpack(tmp_path / "bad.tar", tmp_path / "out")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    where=st.floats(0, 1),
    value=st.integers(1, 255),
    cut=st.booleans(),
    kind=st.sampled_from(["gz", "xz", "bz2", ""]),
)
def test_damaged_archives_are_the_users_error(
    tmp_path: Path, where: float, value: int, cut: bool, kind: str
) -> None:
    path = tmp_path / "damaged.tar"
    buffer = io.BytesIO()
    with tarfile.open(None, f"w:{kind}", buffer) as tar:  # pyright: ignore[reportCallIssue, reportArgumentType]
        for name in ("a", "deep/b", "c" * 120):
            member(name, content=random.Random(name).randbytes(700))(tar)
    data = bytearray(buffer.getvalue())
    place = int(where * (len(data) - 1))
    data[place] ^= value
    path.write_bytes(data[:place] if cut else data)
    try:
        artifacts.unpack(path, tmp_path / "out")
    except DataError:
        return


# -- checkpoints -------------------------------------------------------------------------------------------

URI = "s3://kept/job"


def kept(places: StorageURIs) -> dict[str, str]:
    if not places.exists(f"{URI}/"):
        return {}
    return {source.name: b"".join(source.read()).decode() for source in places.under(f"{URI}/")}


def test_a_file_is_copied_once_it_rests(places: StorageURIs, tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoints", a="half")
    checkpoints = Checkpoints(places, URI, [folder])
    checkpoints.copy()
    assert kept(places) == {}
    write(folder, a="half and more")
    checkpoints.copy()
    assert kept(places) == {}
    checkpoints.copy()
    assert kept(places) == {"a": "half and more"}
    write(folder, a="the next one, half")
    checkpoints.copy()
    assert kept(places) == {"a": "half and more"}
    write(folder, a="the next one, whole!")
    checkpoints.copy()
    assert kept(places) == {"a": "half and more"}
    checkpoints.copy()
    assert kept(places) == {"a": "the next one, whole!"}


def test_a_file_that_changes_while_it_is_copied_does_not_take_the_place_of_a_whole_one(
    places: StorageURIs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "checkpoints", a="first, whole")
    checkpoints = Checkpoints(places, URI, [folder])
    checkpoints.copy()
    checkpoints.copy()
    assert kept(places) == {"a": "first, whole"}
    write(folder, a="second, whole")
    checkpoints.copy()
    upload = places.objects.upload

    def overtaken(bucket: str, key: str, path: Path) -> None:
        (folder / "a").write_text("thi")  # the script begins to write the third
        upload(bucket, key, path)

    monkeypatch.setattr(places.objects, "upload", overtaken)
    checkpoints.copy()
    assert kept(places)["a"] in ("first, whole", "second, whole")


def test_a_file_that_a_worker_is_still_writing_stays_here(
    places: StorageURIs, tmp_path: Path
) -> None:
    folder = write(tmp_path / "checkpoints", a="1")
    write(folder / ".model.keras.0a1b2c3d.partial", model="half")
    Checkpoints(places, URI, [folder]).copy(settled=False)
    assert kept(places) == {"a": "1"}


def test_removed_files_are_removed(places: StorageURIs, tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoints", a="1", deep__b="2")
    checkpoints = Checkpoints(places, URI, [folder])
    checkpoints.copy(settled=False)
    assert kept(places) == {"a": "1", "deep/b": "2"}
    (folder / "a").unlink()
    checkpoints.copy()
    assert kept(places) == {"deep/b": "2"}


def test_what_is_there_is_restored_and_not_sent_again(places: StorageURIs, tmp_path: Path) -> None:
    for name, text in (("a", "1"), ("deep/b", "2")):
        (tmp_path / "file").write_text(text)
        places.upload(tmp_path / "file", f"{URI}/{name}")
    (tmp_path / "file").write_text("a neighbour")
    places.upload(tmp_path / "file", f"{URI}-2/x")
    before = {source.name: source.local for source in places.under(f"{URI}/")}
    folders = [tmp_path / "one", tmp_path / "two"]
    checkpoints = Checkpoints(places, URI, folders)
    assert checkpoints.restore() == 2
    assert [files(folder) for folder in folders] == [{"a": "1", "deep/b": "2"}] * 2
    checkpoints.copy()
    checkpoints.copy()
    assert {source.name: source.local for source in places.under(f"{URI}/")} == before
    for folder in folders:
        (folder / "a").unlink()
    checkpoints.copy()
    assert kept(places) == {"deep/b": "2"}
    assert places.text(f"{URI}-2/x") == "a neighbour"


def test_nothing_to_restore(places: StorageURIs, tmp_path: Path) -> None:
    assert Checkpoints(places, URI, [tmp_path]).restore() == 0
    assert Checkpoints(places, (tmp_path / "none").as_uri(), [tmp_path]).restore() == 0


def test_a_key_that_leads_out_is_not_restored(places: StorageURIs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("bad")
    places.upload(tmp_path / "file", f"{URI}/../../flag")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    with contextlib.suppress(SyrtosError):
        Checkpoints(places, URI, [tmp_path / "deep" / "er"]).restore()
    assert not (tmp_path / "flag").exists()


def test_copying_goes_on_beside_and_ends_with_everything(
    places: StorageURIs, tmp_path: Path
) -> None:
    folder = write(tmp_path / "checkpoints", a="1")
    checkpoints = Checkpoints(places, URI, [folder], every=0.02)
    checkpoints.start()
    deadline = time.monotonic() + 10
    while kept(places) != {"a": "1"} and time.monotonic() < deadline:
        time.sleep(0.01)
    write(folder, b="the last one, written just before the end")
    checkpoints.finish()
    assert kept(places) == {"a": "1", "b": "the last one, written just before the end"}
    assert checkpoints.error is None


def test_a_store_that_fails_for_a_moment_is_tried_again(
    places: StorageURIs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "checkpoints", a="1")
    upload, tried = places.objects.upload, []

    def fails(bucket: str, key: str, path: Path) -> None:
        tried.append(key)
        if len(tried) < 3:
            raise OSError("no network")
        upload(bucket, key, path)

    monkeypatch.setattr(places.objects, "upload", fails)
    checkpoints = Checkpoints(places, URI, [folder], every=0.02)
    checkpoints.start()
    deadline = time.monotonic() + 10
    while not kept(places) and time.monotonic() < deadline:
        time.sleep(0.01)
    checkpoints.finish()
    assert kept(places) == {"a": "1"}


def test_archives_whose_headers_would_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("a")
        member.pax_headers = {"comment": "x" * (17 << 20)}
        tar.addfile(member)
    with pytest.raises(DataError, match="header"):
        artifacts.unpack(path, tmp_path / "into")
    monkeypatch.setattr(artifacts, "_MOST_MEMBERS", 3)
    with tarfile.open(path, "w:gz") as tar:
        for number in range(4):
            tar.addfile(tarfile.TarInfo(f"{number}"))
    with pytest.raises(DataError, match="more than"):
        artifacts.unpack(path, tmp_path / "into")


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_archives_of_each_compression(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    (tmp_path / "BZ").write_text("x")
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        tar.add(tmp_path / "BZ", "BZ")
    (tmp_path / "archive").write_bytes(compress(plain.getvalue()))
    artifacts.unpack(tmp_path / "archive", tmp_path / "into")
    assert (tmp_path / "into" / "BZ").read_text() == "x"


def test_checkpoints_follow_no_link_out_of_their_folder(
    places: StorageURIs, tmp_path: Path
) -> None:
    folder, private = tmp_path / "checkpoints", tmp_path / "private"
    for path in (folder, private):
        path.mkdir()
        (path / "own").write_text(path.name)
    kept = artifacts.Checkpoints(places, "s3://bucket/c", [folder])
    (folder / "last").symlink_to(folder / "own")
    (folder / "out").symlink_to(private / "own")
    kept.copy(settled=False)
    assert [one.name for one in places.under("s3://bucket/c/")] == ["last", "own"]
    shutil.rmtree(folder)
    folder.symlink_to(private)
    kept.copy(settled=False)
    assert not places.exists("s3://bucket/c/")


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file"), OSError(28, "No space")])
def test_checkpoints_that_can_not_be_written_are_told_with_where_they_are(
    places: StorageURIs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    folder = write(tmp_path / "checkpoints", a="1")

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(places.objects, "upload", fails)
    checkpoints = Checkpoints(places, URI, [folder])
    checkpoints.start()
    with pytest.raises(UnwritableError, match=f"{error.strerror}.*still in {folder}"):
        checkpoints.finish()


def test_a_full_disk_keeps_no_half_of_a_file(
    places: StorageURIs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_path", Path)
    (tmp_path / "made").write_text("x")

    def fills(_: Path, target: Path) -> None:
        target.write_text("half")
        raise OSError(28, "No space")

    monkeypatch.setattr(shutil, "copyfile", fills)
    with pytest.raises(OSError, match="No space"):
        places.upload(tmp_path / "made", str(tmp_path / "there" / "made"))
    assert not list((tmp_path / "there").iterdir())
