"""Copies of the database of jobs: one a day, the last few are kept. A service does not begin with a damaged or emptied database as if there had been no
jobs.

A Postgres database is its own administrator's to back up.
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


class Backups:
    """Those of one SQLite file.

    Args:
        database: the file.
        folder: of the copies.
    """

    def __init__(self, database: Path, folder: Path) -> None:
        self._database, self._folder = database, folder

    def newest_first(self) -> list[Path]:
        """The copies that are there."""
        return sorted(self._folder.glob(f"*{_SUFFIX}"), reverse=True)

    def check(self) -> None:
        """Raises ConfigurationError where the database is damaged, or has lost the jobs that the newest copy has."""
        copies = self.newest_first()
        wrong = _fault_of(self._database) if self._database.exists() else "is gone" if copies else ""
        if not wrong and copies and not _count(self._database) and _count(copies[0]):
            wrong = "holds no job any more"
        if not wrong:
            return
        offer = (
            f"`syrtos serve --restore` takes back the copy of {_time_of(copies[0])}, and keeps the file beside it; jobs begun since then are not in it. To "
            f"begin without jobs remove {self._folder} and the database."
            if copies
            else "There is no copy of it. To begin without jobs, move it away."
        )
        raise ConfigurationError(f"The database {self._database} {wrong}. {offer}")

    def restore(self) -> Path | None:
        """Puts the newest good copy in the place of the database, which is kept beside it; None if there is none."""
        for copy in self.newest_first():
            if _fault_of(copy):
                continue
            aside = time.strftime("damaged-%Y%m%d-%H%M%S-")
            for path in (
                self._database,
                *(self._database.with_name(self._database.name + end) for end in ("-wal", "-shm")),
            ):
                with contextlib.suppress(FileNotFoundError):
                    path.rename(path.with_name(aside + path.name))
            _copy(copy, self._database)
            return copy
        return None

    def keep(self, now: float | None = None) -> None:
        """Makes a copy if the newest is older than a day, and removes the oldest."""
        now = time.time() if now is None else now
        copies = self.newest_first()
        if not self._database.exists() or (copies and now - copies[0].stat().st_mtime < _EVERY):
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        _copy(self._database, self._folder / (time.strftime("%Y%m%d-%H%M%S", time.localtime(now)) + _SUFFIX))
        for old in self.newest_first()[_KEPT:]:
            old.unlink()


def _copy(source: Path, target: Path) -> None:
    """A consistent copy, also while others write (sqlite.org/backup.html)."""
    draft = target.with_name(f".{target.name}")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    with contextlib.closing(sqlite3.connect(source)) as opened, contextlib.closing(sqlite3.connect(draft)) as copy:
        opened.backup(copy)
    draft.replace(target)


def _fault_of(database: Path) -> str:
    """What is wrong with a file, as the end of a sentence about it; empty if nothing is."""
    if not database.stat().st_size:
        return "is empty"
    try:
        with contextlib.closing(sqlite3.connect(database)) as opened:
            found = opened.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        return f"is damaged: {error}"
    return "" if found == "ok" else f"is damaged: {found.splitlines()[-1]}"


def _count(database: Path) -> int:
    with contextlib.closing(sqlite3.connect(database)) as opened, contextlib.suppress(sqlite3.OperationalError):
        return int(opened.execute("SELECT count(*) FROM jobs").fetchone()[0])
    return 0


def _time_of(copy: Path) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(copy.stat().st_mtime))
