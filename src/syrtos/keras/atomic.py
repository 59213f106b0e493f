"""Files appear complete or not at all: they are written into a folder beside their place, forced to disk, and renamed.

A process that is killed meanwhile leaves the old files as they were, and a folder ``.NAME.*.partial`` that the next writer removes.
Several files that belong together (a checkpoint's data and index) can't be renamed at once: the folder is renamed to
``.NAME.complete`` first, and from then on `settle` ends what a killed process has begun.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

_PARTIAL, _COMPLETE = ".partial", ".complete"
# Through these a reader finds the other files: they come last.
_FOUND_FIRST = (".index", ".json", "saved_model.pb")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2

_writing = threading.local()


def local(path: Any) -> str | None:
    """The path as text, or None for an object in memory and for the address of a store, which shows complete objects only."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    return text if isinstance(text, str) and text and "://" not in text else None


def write(path: str, function: Callable[[str], Result]) -> Result:
    """Calls ``function`` with a path of the same name in another folder; what it writes there takes the place of ``path``.

    Where no folder can be made beside ``path``, and inside another `write`, ``function`` gets ``path`` itself.
    """
    place = top = Path(os.path.realpath(path))
    while not top.parent.exists():  # the function makes folders, or says that there is none
        top = top.parent
    folder = None if getattr(_writing, "now", False) else _folder_beside(top)
    if folder is None:
        return function(path)
    beside = str(folder / place.relative_to(top.parent))
    with _held(folder):
        _writing.now = True
        try:
            result = function(beside)
            settle(path)
            _publish(folder, top)
        except Exception as error:
            _name_place(error, {beside: path, str(top): path, str(folder): str(top.parent)})
            raise
        finally:
            _writing.now = False
            shutil.rmtree(folder, ignore_errors=True)
    return result


def settle(path: str) -> None:
    """Moves files to their places that a killed process has completed and not yet moved."""
    place = Path(os.path.realpath(path))
    complete = place.with_name(f".{place.name}{_COMPLETE}")
    if not complete.is_dir():
        return
    for file in _in_order(complete):
        with contextlib.suppress(FileNotFoundError):  # another worker settles as well
            os.replace(file, place.parent / file.name)
    _force(place.parent)
    shutil.rmtree(complete, ignore_errors=True)


def _folder_beside(place: Path) -> Path | None:
    """A new folder; what earlier writers have left is removed."""
    for left in place.parent.glob(f".{_literal(place.name)}.*{_PARTIAL}"):
        with _held(left) as held:
            if held:
                shutil.rmtree(left, ignore_errors=True)
    folder = place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}{_PARTIAL}")
    try:
        folder.mkdir(mode=0o700)
        return folder
    except OSError:  # no such folder, or not ours to write to: the original says so, or can do without
        return None


def _literal(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Marks a folder as in use by a process that lives; whether that was possible, and no other process does so."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        held = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            held = False
        yield held
    finally:
        os.close(descriptor)


def _publish(folder: Path, place: Path) -> None:
    """Puts what lies in ``folder`` beside ``place``, under the same names."""
    entries = list(folder.iterdir())
    for found in [folder, *folder.rglob("*")]:
        _force(found)
    if len(entries) == 1:
        _move(entries[0], place.parent / entries[0].name)
    elif entries:
        os.rename(folder, place.with_name(f".{place.name}{_COMPLETE}"))
        _force(place.parent)
        settle(str(place))
    _force(place.parent)


def _move(new: Path, place: Path) -> None:
    if not new.is_dir() or not place.is_dir() or not any(place.iterdir()):
        os.replace(new, place)
    elif Path.cwd().is_relative_to(place):
        _move_each(new, place)  # a process would go on in the old folder
    else:
        try:
            _keep_others(place, new)
            _exchange(new, place)
        except (OSError, AttributeError):  # a place where a disk is mounted, or a file system or C library that can't
            _move_each(new, place)


def _keep_others(old: Path, new: Path) -> None:
    """Files of the old folder that the new one does not have stay."""
    shutil.copystat(old, new)
    for source in sorted(old.rglob("*")):
        target = new / source.relative_to(old)
        if target.exists() or target.is_symlink():
            continue
        if source.is_dir() and not source.is_symlink():
            target.mkdir()
        else:
            os.link(source, target, follow_symlinks=False)


def _exchange(one: Path, other: Path) -> None:
    """Both paths change places at once."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))


def _move_each(new: Path, place: Path) -> None:
    for file in _in_order(new):
        if file.is_file():
            target = place / file.relative_to(new)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, target)


def _in_order(folder: Path) -> list[Path]:
    """What a reader looks for first comes last."""
    return sorted(folder.rglob("*"), key=lambda file: (file.name == "checkpoint", file.name.endswith(_FOUND_FIRST)))


def _force(path: Path) -> None:
    """Waits until a file, or the entries of a folder, are on disk."""
    if path.is_symlink():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name_place(error: Exception, names: Mapping[str, str]) -> None:
    """Lets an error name what the script has named."""

    def named(text: Any) -> Any:
        for ours, theirs in names.items():
            text = text.replace(ours, theirs) if isinstance(text, str) else text
        return text

    error.args = tuple(named(part) for part in error.args)
    if isinstance(error, OSError):
        error.filename, error.strerror = named(error.filename), named(error.strerror)
        if error.filename2 is not None:
            del error.filename2  # the same name
