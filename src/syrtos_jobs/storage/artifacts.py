"""A job's results: archives of its output folders, and checkpoints that are copied while it runs.

Archives are checked before they are unpacked.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import re
import shutil
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from syrtos.errors import DataError
from syrtos_jobs.storage.storage_uris import StorageURIs, safe_name

_LARGEST = 8 << 30
_MOST_MEMBERS = 250_000
_LARGEST_READ = 16 << 20


def pack(folders: Sequence[Path], archive: Path) -> int:
    """Packs the files of all ``folders`` into a ``tar.gz``.

    Returns:
        The number of files; with none, no archive is made.
    """
    files = _merge_folders(folders)
    if files:
        # weights hardly get smaller at higher levels, which take longer
        with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
            for name, path in files.items():
                tar.add(path, name, recursive=False)
    return len(files)


def check_inside(folder: Path, outer: Path, name: str) -> None:
    """Raises DataError if a folder of a job, called ``name``, is outside of ``outer`` by a link."""
    if not folder.resolve().is_relative_to(outer.resolve()):
        raise DataError(f"{name} is a link that leads out of the job's folders. Name a folder.")


def _merge_folders(folders: Sequence[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in folders:
        # of two files with one name that of the later folder is packed, as on SageMaker
        found |= {
            path.relative_to(folder).as_posix(): path.resolve()
            for path in sorted(_files_inside(folder))
        }
    return found


def _files_inside(folder: Path) -> Iterator[Path]:
    """Yields the paths of the files in a folder, by links too that do not lead out of it."""
    root = folder.resolve()
    # each with whether a link has led there: links to folders in these would multiply files
    left = [(folder, False)]
    while left:
        here, is_linked = left.pop()
        paths = list[Path]()
        # the script may have removed or closed it
        with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
            paths += here.iterdir()
        for path in paths:
            try:
                target = path.resolve() if path.is_symlink() else None
            except (OSError, RuntimeError):  # a loop of links
                continue
            if target and not target.is_relative_to(root):
                continue
            if path.is_file():
                yield path
            elif path.is_dir() and not (
                target and (is_linked or here.resolve().is_relative_to(target))
            ):
                left.append((path, is_linked or bool(target)))


def unpack(archive: Path, folder: Path) -> None:
    """Extracts an archive into ``folder``, without owners or special modes (PEP 706).

    Files, folders, and links that stay inside are extracted.

    Raises:
        DataError: it is no archive, names a path outside the folder, holds links out of it or
            devices, or unpacks to more than 8 GiB.
    """
    try:
        with bounded_archive(archive) as tar:
            size, members = 0, []
            # one by one: the headers alone may be more than memory
            for member in tar:
                _check(member, archive.name)
                size += member.size
                members.append(member)
                if size > _LARGEST or len(members) > _MOST_MEMBERS:
                    raise DataError(
                        f"{archive.name} unpacks to more than {_LARGEST >> 30} GiB, or"
                        f" {_MOST_MEMBERS} files."
                    )
            tar.extractall(folder, members, filter="data")
    except (tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{archive.name} can't be unpacked: {error}") from error


@contextlib.contextmanager
def bounded_archive(archive: Path) -> Iterator[tarfile.TarFile]:
    """Context manager: opens an archive of which no header can fill the memory.

    Raises:
        DataError: it has such a header.
    """
    with archive.open("rb") as file:
        opener = _opener_of(file.read(10))
    with (
        opener(archive, "rb") as plain,
        tarfile.open(fileobj=cast(IO[bytes], _BoundedFile(plain)), mode="r:") as tar,
    ):
        yield tar


def _opener_of(start: bytes) -> Callable[..., Any]:
    """Returns the function that opens an archive which begins so."""
    if start.startswith(b"\x1f\x8b"):
        return gzip.open
    if start.startswith(b"BZh") and start[4:] == b"1AY&SY":
        return bz2.open
    return lzma.open if start.startswith(b"\xfd7zXZ") else open


class _BoundedFile:
    """A file for `tarfile`, which reads the long headers of an archive at once."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LARGEST_READ:
            raise DataError(f"A header of the archive has {size} bytes.")
        return self._file.read(size)


def _check(member: tarfile.TarInfo, archive: str) -> None:
    """Raises DataError unless a member is a file, folder, or link within the archive's folder."""
    # the filter of `tarfile` alone can be got round with chains of links (CVE-2025-4517)
    inside = (
        member.issym()
        and not member.linkname.startswith("/")
        and ".." not in Path(member.linkname).parts
    )
    if not (member.isfile() or member.isdir() or inside) or member.size < 0:
        raise DataError(
            f"{archive} holds {member.name}, which is no file, folder or link to one beside or"
            " below it."
        )


class UnwritableError(DataError):
    """A job's results can't be written to where they belong; its folders are to stay."""


@contextlib.contextmanager
def writing(uri: str, folders: Sequence[Path]) -> Iterator[None]:
    """Context manager of an upload of the files in ``folders``.

    Raises:
        UnwritableError: it has failed.
    """
    try:
        yield
    except OSError as error:
        raise UnwritableError(
            f"{uri} can't be written ({error.strerror}). The job's files are still in"
            f" {', '.join(map(str, folders))}."
        ) from error


def upload(
    places: StorageURIs, folders: Sequence[Path], uri: str, archive: str | None, scratch: Path
) -> bool:
    """Uploads the files of ``folders`` to ``uri``, as one ``archive`` or one by one.

    Returns:
        Whether there were any files.
    """
    # a script may have put a link in the place of a folder
    inner = scratch.resolve()
    folders = [folder for folder in folders if folder.resolve().is_relative_to(inner)]
    if archive is None:
        files = _merge_folders(folders)
        for name, path in files.items():
            places.upload(path, f"{uri}/{name}")
        return bool(files)
    with tempfile.TemporaryDirectory(dir=scratch) as made:
        path = Path(made) / archive
        if not pack(folders, path):
            return False
        places.upload(path, f"{uri}/{archive}")
    return True


# How files are named that a worker is still writing (`syrtos.keras.files.atomic`).
_UNFINISHED = re.compile(r"\..+\.partial")


class Checkpoints:
    """Keeps a URI equal to the contents of a job's checkpoint folders."""

    def __init__(
        self, places: StorageURIs, uri: str, folders: Sequence[Path], every: float = 1.0
    ) -> None:
        self._places, self._uri, self._folders, self._every = places, uri, folders, every
        # as they are before a script can put links in their places
        self._roots = {folder: folder.resolve() for folder in folders}
        self._seen: dict[Path, tuple[int, int]] = {}
        self._sent: dict[Path, tuple[int, int]] = {}
        self._names: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: Exception | None = None

    def restore(self) -> int:
        """Copies the files at the URI into every folder, and returns their number."""
        if not self._places.exists(self._uri + "/"):
            return 0
        found = self._places.under(self._uri + "/")
        for folder in self._folders:
            for source in found:
                path = folder / safe_name(source.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                source.fetch(path)
                self._sent[path] = self._seen[path] = _version(path)
        self._names = {source.name for source in found}
        return len(found)

    def start(self) -> None:
        """Begins to copy."""
        self._thread.start()

    def finish(self) -> None:
        """Stops the copying thread and copies the rest; no process may write any more."""
        self._over.set()
        self._thread.join()
        self.copy(settled=False)

    def _run(self) -> None:
        while not self._over.wait(self._every):
            try:
                self.copy()
                self.error = None
            except Exception as error:
                # it is tried again; what fails at the end, in `finish`, is raised there
                self.error = error

    def copy(self, settled: bool = True) -> None:
        """Uploads new and changed files, and removes from the URI those that are gone.

        Args:
            settled: leave out files that have changed since the last look.
        """
        names = set()
        for folder in self._folders:
            for path in sorted(_files_inside(folder)):
                if not path.resolve().is_relative_to(self._roots[folder]):
                    # a link out of the folder
                    continue
                name = path.relative_to(folder)
                if any(_UNFINISHED.fullmatch(part) for part in name.parts):
                    continue
                names.add(name.as_posix())
                self._copy_one(folder, path, settled)
        with writing(self._uri, self._folders):
            for name in self._names - names:
                self._places.remove(f"{self._uri}/{name}")
        self._names = names

    def _copy_one(self, folder: Path, path: Path, settled: bool) -> None:
        try:
            version = _version(path)
            before, self._seen[path] = self._seen.get(path), version
            # a file that has changed since the last look may be half written, and would replace a
            # whole one
            if self._sent.get(path) == version or (settled and before != version):
                return
            # a copy is sent, since the file may begin to change meanwhile
            with tempfile.NamedTemporaryFile() as copy:
                shutil.copyfile(path, copy.name)
                if _version(path) != version:
                    return
                name = path.relative_to(folder).as_posix()
                # not as a missing file: a folder of the URI may be missing
                with writing(self._uri, self._folders):
                    self._places.upload(Path(copy.name), f"{self._uri}/{name}")
        except FileNotFoundError:
            # it was temporary
            return
        self._sent[path] = version


def _version(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_mtime_ns, facts.st_size
