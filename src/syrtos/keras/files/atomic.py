"""Files appear complete or not at all.

They are written into a folder beside their place, forced to disk, and renamed. A process that is
killed meanwhile leaves the old files as they were, and a folder ``.NAME.BOOT-ID.partial`` that the
next writer removes. A living writer holds a lock on its folder. The locks of another machine may
not be seen here: its folders are removed when they are old. Several files that belong together (a
checkpoint's data and index) can't be renamed at once: the folder is renamed to ``.NAME.complete``
first, and from then on `settle` finishes what a killed process has begun.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from syrtos.checkpoint.durable import force
from syrtos.scopes import set_within

Result = TypeVar("Result")

_PARTIAL, _COMPLETE = ".partial", ".complete"
# Through these a reader finds the other files: they come last.
_FOUND_FIRST = (".index", ".json", "saved_model.pb")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# Seconds without a change after which a folder that another machine has made is no longer being
# written.
_OLD = 24 * 3600.0

# Whether this thread is inside of `write`.
_writing: ContextVar[bool] = ContextVar("writing", default=False)


def local(path: object) -> str | None:
    """Returns the path as text; None for an object in memory, and for the address of a store."""
    # Stores show complete objects only: there is nothing to be done for them.
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    return text if isinstance(text, str) and text and "://" not in text else None


def write(path: str, function: Callable[[str], Result]) -> Result:
    """Calls ``function`` with a path in another folder, and moves what it writes there to ``path``.

    The name of the file stays the same. Where no folder can be made beside ``path``, and inside
    another `write`, ``function`` gets ``path`` itself.
    """
    place = top = Path(os.path.realpath(path))
    # The function makes folders that are missing, or says that there is none.
    while not top.parent.exists():
        top = top.parent
    with contextlib.nullcontext() if _writing.get() else _folder_beside(top) as folder:
        return function(path) if folder is None else _write_in(folder, path, place, top, function)


def _write_in(
    folder: Path, path: str, place: Path, top: Path, function: Callable[[str], Result]
) -> Result:
    beside = str(folder / place.relative_to(top.parent))
    try:
        with set_within(_writing, True):
            result = function(beside)
            settle(path)
            _publish(folder, top)
    except Exception as error:
        _name_place(error, {beside: path, str(top): path, str(folder): str(top.parent)})
        raise
    return result


def settle(path: str) -> None:
    """Moves those files to their places that a killed process has completed, but not yet moved."""
    place = Path(os.path.realpath(path))
    complete = place.with_name(f".{place.name}{_COMPLETE}")
    if not complete.is_dir():
        return
    # Another worker may have settled all of it.
    with contextlib.suppress(FileNotFoundError):
        for file in _in_order(complete):
            # Another worker may be settling it at the same time.
            with contextlib.suppress(FileNotFoundError):
                os.replace(file, place.parent / file.name)
    _force(place.parent)
    # A writer may have put the next version there meanwhile, which it settles itself.
    with contextlib.suppress(OSError):
        complete.rmdir()


@contextlib.contextmanager
def _folder_beside(place: Path) -> Iterator[Path | None]:
    """Context manager: makes a folder beside ``place``, and removes it in the end.

    No other writer removes the folder. It is None where none can be made: there is no parent
    folder, or it may not be written to. The function that writes says so, or can do without.
    """
    _remove_left(place)
    for folder in iter(lambda: _new_folder(place), None):
        with _folder_lock(folder) as held:
            # Another writer has found it before it was locked, and removes it.
            if held is False:
                continue
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
    yield None


def _new_folder(place: Path) -> Path | None:
    folder = place.with_name(f".{place.name}.{_boot()}-{uuid.uuid4().hex[:8]}{_PARTIAL}")
    try:
        folder.mkdir(mode=0o700)
        return folder
    except OSError:
        return None


def _remove_left(place: Path) -> None:
    """Removes the folders that earlier writers of this name have left behind."""
    name = re.compile(
        rf"\.{re.escape(place.name)}\.([0-9a-f]{{8}})-[0-9a-f]{{8}}{re.escape(_PARTIAL)}"
    )
    entries: list[str] = []
    # A folder may allow to write and not to read.
    with contextlib.suppress(OSError):
        entries = os.listdir(place.parent)
    for left in filter(None, map(name.fullmatch, entries)):
        folder = place.with_name(left[0])
        # The folder of another user can't be opened.
        with contextlib.suppress(OSError), _folder_lock(folder) as held:
            if held and (left[1] == _boot() or time.time() - _last_change(folder) > _OLD):
                shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _boot() -> str:
    """Returns eight digits for this boot of the machine, whose processes see each other's locks."""
    return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]


def _last_change(folder: Path) -> float:
    """Returns when anything in a folder was last changed, in seconds since the epoch."""
    return max(found.lstat().st_mtime for found in (folder, *folder.rglob("*")))


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[bool | None]:
    """Context manager: locks a folder, and gives whether it did.

    False: the folder is gone, or another process holds it; None: its file system has no locks.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        yield False
        return
    try:
        held = _lock(descriptor)
        yield held if folder.exists() else False
    finally:
        # A process forked meanwhile has the descriptor too: closing it does not end the lock.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _publish(folder: Path, place: Path) -> None:
    """Moves the content of ``folder``, once it is on disk, to where ``place`` is, keeping names."""
    entries = list(folder.iterdir())
    for found in [folder, *folder.rglob("*")]:
        _force(found)
    if len(entries) == 1:
        _move(entries[0], place.parent / entries[0].name)
    elif entries:
        _complete(folder, place)
    _force(place.parent)


def _complete(folder: Path, place: Path) -> None:
    """Marks a folder with several files as complete, and settles it.

    Those of the version before are moved to their places first.
    """
    while True:
        settle(str(place))
        try:
            os.rename(folder, place.with_name(f".{place.name}{_COMPLETE}"))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        # Else another process has put its folder there first: that is settled before the next
        # attempt.
        else:
            _force(place.parent)
            return settle(str(place))


def _move(new: Path, place: Path) -> None:
    if not new.is_dir() or not place.is_dir() or not any(place.iterdir()):
        os.replace(new, place)
    elif Path.cwd().is_relative_to(place):
        # This process would go on in the old folder if the two were exchanged.
        _move_each(new, place)
    else:
        try:
            _keep_others(place, new)
            _exchange(new, place)
        # A place where a disk is mounted, or a file system or C library that can't exchange two
        # folders.
        except (OSError, AttributeError):
            _move_each(new, place)


def _keep_others(old: Path, new: Path) -> None:
    """Links the old folder's files that the new one lacks into the new one, so that they stay."""
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
    """Swaps two paths in one step (Linux's renameat2).

    Raises:
        OSError: the file system can't do that.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.renameat2(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
    ):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))


def _move_each(new: Path, place: Path) -> None:
    for file in _in_order(new):
        if file.is_file():
            target = place / file.relative_to(new)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, target)


def _in_order(folder: Path) -> list[Path]:
    """Returns the entries of a folder in the order to move them.

    The files that a reader looks for first come last.
    """
    return sorted(
        folder.rglob("*"),
        key=lambda file: (file.name == "checkpoint", file.name.endswith(_FOUND_FIRST)),
    )


def _force(path: Path) -> None:
    """Waits until a file, or the entries of a folder, are on disk."""
    if not path.is_symlink():
        force(path)


def _name_place(error: Exception, names: Mapping[str, str]) -> None:
    """Replaces our paths in an error by those that the script has named."""

    def replace_names(text: Any) -> Any:  # an error's arguments may be anything
        for ours, theirs in names.items():
            text = text.replace(ours, theirs) if isinstance(text, str) else text
        return text

    error.args = tuple(replace_names(part) for part in error.args)
    if isinstance(error, OSError):
        error.filename, error.strerror = (
            replace_names(error.filename),
            replace_names(error.strerror),
        )
        if error.filename2 is not None:
            # A second name would be shown, and is the same as the first.
            del error.filename2
