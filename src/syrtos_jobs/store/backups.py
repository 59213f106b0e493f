"""Copies of the database of jobs: one is made a day, and the last few are kept.

A service does not begin with a damaged or emptied database as if there had been no jobs.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path

from syrtos.errors import ConfigurationError

_SUFFIX = ".sqlite"
_EVERY = 24 * 3600.0
_KEPT = 3
# `PRAGMA user_version` of a database whose last job was deleted by a request.
ALL_DELETED = 1
_END_ALL = (
    "UPDATE jobs SET status = 'Failed', secondary = 'Failed', failure = 'InternalServerError: the"
    " database was restored from a copy that was made while this job was going on.' WHERE status IN"
    " ('InProgress', 'Stopping')"
)


class Backups:
    """The copies of one SQLite file.

    Args:
        database: the file.
        folder: the folder of the copies.
    """

    def __init__(self, database: Path, folder: Path) -> None:
        self.database, self._folder = database, folder

    def newest_first(self) -> list[Path]:
        """Returns the paths of the copies, the newest first."""
        return sorted(self._folder.glob(f"[0-9]*{_SUFFIX}"), reverse=True)

    def check(self) -> None:
        """Checks that the database can be used.

        Raises:
            ConfigurationError: it can't be opened, is damaged, or has lost the jobs that the newest
                copy has.
        """
        copies = self.newest_first()
        wrong = fault_of(self.database) if self.database.exists() else "is gone" if copies else ""
        if not wrong and copies and self._has_lost_jobs(self.database, copies[0]):
            wrong = "holds no job any more"
        if not wrong:
            return
        offer = (
            f"`syrtos serve --restore` takes back the copy of {_time_of(copies[0])}, and keeps the"
            " file beside it; jobs begun since then are not in it. To begin without jobs remove"
            f" {self._folder} and the database."
            if copies
            else "There is no copy of it. To begin without jobs, move it away."
        )
        raise ConfigurationError(f"The database {self.database} {wrong}. {offer}")

    @staticmethod
    def _has_lost_jobs(database: Path, copy: Path) -> bool:
        """Returns whether a database has lost its jobs.

        Such a database has no jobs, none was deleted by a request, and its copy has some.
        """
        count, deleted = _count(database)
        return not count and not deleted and bool(_count(copy)[0])

    def restore(self) -> Path | None:
        """Replaces the database by the newest good copy, and returns the copy's path.

        The result is None if there is no good copy. The old database is renamed and stays beside
        the new one.
        """
        for copy in self.newest_first():
            if fault_of(copy):
                continue
            # made beside it, and renamed when it is complete
            draft = self.database.with_name(".restored.sqlite")
            _copy(copy, draft)
            with (
                contextlib.closing(sqlite3.connect(draft)) as opened,
                contextlib.suppress(sqlite3.OperationalError),
            ):
                # jobs that ran when the copy was made may have ended since: a person is to decide
                # what begins again
                opened.execute(_END_ALL)
                opened.commit()
            set_aside(self.database)
            draft.replace(self.database)
            return copy
        return None

    def keep(self, now: float | None = None) -> None:
        """Makes a copy if the newest is older than a day, and removes all but the last few.

        Raises:
            ConfigurationError: the database is damaged by now, or has lost its jobs: the copies
                stay as they are.
        """
        now = time.time() if now is None else now
        copies = self.newest_first()
        if not self.database.exists() or (copies and now - copies[0].stat().st_mtime < _EVERY):
            return
        # a copy of a damaged database would push out a good one
        self.check()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        _copy(
            self.database,
            self._folder / (time.strftime("%Y%m%d-%H%M%S", time.localtime(now)) + _SUFFIX),
        )
        for old in self.newest_first()[_KEPT:]:
            old.unlink()


def set_aside(database: Path) -> Path:
    """Renames a damaged SQLite file, which stays beside its place; returns the new path."""
    aside = time.strftime("damaged-%Y%m%d-%H%M%S-")
    # with its journal, which SQLite would apply to a new file
    for path in (database, *(database.with_name(database.name + end) for end in ("-wal", "-shm"))):
        with contextlib.suppress(FileNotFoundError):
            path.rename(path.with_name(aside + path.name))
    return database.with_name(aside + database.name)


def _copy(source: Path, target: Path) -> None:
    """Makes a consistent copy of a database, even while other processes write to it."""
    # by SQLite itself (sqlite.org/backup.html): a copy of the file might catch half a transaction
    draft = target.with_name(f".{target.name}")
    draft.unlink(missing_ok=True)
    try:
        # jobs' requests may hold secrets
        draft.touch(mode=0o600)
        with (
            contextlib.closing(sqlite3.connect(source)) as opened,
            contextlib.closing(sqlite3.connect(draft)) as copy,
        ):
            opened.backup(copy)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def fault_of(database: Path) -> str:
    """Returns a database file's fault as the end of a sentence about it; empty if there is none.

    Raises:
        ConfigurationError: it can't be opened, which says nothing about the file: a full disk
            causes that too.
    """
    if not database.stat().st_size:
        return "is empty"
    try:
        with contextlib.closing(sqlite3.connect(database)) as opened:
            found = opened.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError as error:
        raise ConfigurationError(
            f"The database {database} can't be opened: {error}. Is the disk full?"
        ) from error
    except sqlite3.DatabaseError as error:
        return f"is damaged: {error}"
    return "" if found == "ok" else f"is damaged: {found.splitlines()[-1]}"


def _count(database: Path) -> tuple[int, bool]:
    """Returns the number of jobs, and whether the last job was deleted by a request."""
    with contextlib.closing(sqlite3.connect(database)) as opened:
        deleted = opened.execute("PRAGMA user_version").fetchone()[0] == ALL_DELETED
        if not opened.execute("SELECT 1 FROM sqlite_master WHERE name = 'jobs'").fetchone():
            return 0, deleted
        return int(opened.execute("SELECT count(*) FROM jobs").fetchone()[0]), deleted


def _time_of(copy: Path) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(copy.stat().st_mtime))
