"""A service's folder: its database, objects, jobs and keys. Only the service's user can read it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import secrets
import shutil
import socket
import struct
import tempfile
from pathlib import Path
from typing import IO, Any

from syrtos import settings
from syrtos.errors import ConfigurationError
from syrtos_jobs.placement import Placement
from syrtos_jobs.store.backups import Backups
from syrtos_jobs.store.reserve import Reserve

ACCOUNT = "000000000000"
REGION = "us-west-2"
BUCKET = f"sagemaker-{REGION}-{ACCOUNT}"  # as SageMaker's SDKs name it


class Home:
    """A service's folder.

    Args:
        path: the folder, made when it is missing. Default: SYRTOS_HOME, or
            ``~/.local/share/syrtos``.
    """

    def __init__(self, path: Path | None = None) -> None:
        given = settings.environment().get("SYRTOS_HOME")
        self.path = (path or Path(given or Path.home() / ".local" / "share" / "syrtos")).resolve()
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigurationError(
                f"The folder of jobs, {self.path}, can't be made: {error.strerror}. Set SYRTOS_HOME"
                " to one that can."
            ) from error
        # `mkdir` sets no mode of a folder that was there
        if self.path.stat().st_mode & 0o077:
            self.path.chmod(0o700)

    @property
    def jobs(self) -> Path:
        """The folder that holds a folder for each job."""
        return self.path / "jobs"

    @property
    def objects(self) -> Path:
        """The folder of the embedded object store."""
        return self.path / "objects"

    @property
    def database(self) -> str:
        """The URL of the job database: SYRTOS_DATABASE_URL (Postgres), or SQLite in this folder."""
        return (
            settings.environment().get(settings.DATABASE_VARIABLE)
            or f"sqlite:///{self.path / 'jobs.sqlite'}"
        )

    @property
    def backups(self) -> Backups | None:
        """The copies of the database; None if it is not a file of this folder."""
        if settings.environment().get(settings.DATABASE_VARIABLE):
            return None
        return Backups(self.path / "jobs.sqlite", self.path / "backups")

    @property
    def reserve(self) -> Reserve:
        """Reserved room on this disk, so that a job that has filled the disk can be recorded."""
        return Reserve(self.path / "reserve")

    @property
    def place(self) -> str:
        """The name of this folder that is unique among all machines: host and path."""
        return f"{socket.gethostname()}:{self.path}"

    def job(self, name: str) -> Path:
        """Returns the folder of one job. Names have been checked: letters, digits and hyphens."""
        return self.jobs / name

    def new_snapshot_memory(self, name: str) -> Path:
        """Makes a new folder in memory for the snapshots of a job's workers."""
        # by its name the folder of a runner that was killed is found again
        shared = Path("/dev/shm")
        return Path(
            tempfile.mkdtemp(
                prefix=self._memory_of(name), dir=shared if shared.is_dir() else self.job(name)
            )
        )

    def forget_snapshots(self, name: str) -> None:
        """Removes the snapshots of a job whose workers have ended, even those of killed runners."""
        memory, job = self._memory_of(name) + "*", self.job(name)
        for folder in (
            *Path("/dev/shm").glob(memory),
            *job.glob(memory),
            *job.glob("attempt-*/snapshots"),
        ):
            shutil.rmtree(folder, ignore_errors=True)

    def _memory_of(self, name: str) -> str:
        return f"syrtos-{hashlib.sha256(str(self.job(name)).encode()).hexdigest()[:16]}-"

    def keys(self) -> tuple[str, str]:
        """Returns the access key and secret key of the service's owner, made at first use."""
        return _keys(self.path / "credentials.json")

    def endpoint(self) -> str | None:
        """Returns the address of this folder's running service; None if no service runs."""
        if not is_locked(self.path / "serving"):
            return None
        return self._read_announcement().get("url")

    def certificate(self) -> str | None:
        """Returns the path of the running service's certificate if it speaks TLS, or None."""
        return self._read_announcement().get("certificate")

    def files(self) -> list[Path] | None:
        """Returns the folders that the last service's jobs may name by ``file://``; None: any."""
        # none where no service has said which: its file may have been lost
        found = self._read_announcement().get("files", [])
        return None if found is None else [Path(folder) for folder in found]

    def capacity(self) -> int:
        """Returns the number of workers that the running service may run at the same time."""
        return self._read_announcement()["capacity"]

    def _read_announcement(self) -> dict[str, Any]:
        try:
            return json.loads((self.path / "endpoint.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}

    def placement(self) -> Placement:
        """Returns where the running service, or the last one, has its jobs run."""
        found = self._read_announcement().get("placement")
        return Placement(**found) if found else Placement()

    def announce(
        self,
        url: str | None,
        certificate: str | None,
        files: list[Path] | None,
        capacity: int,
        placement: Placement | None = None,
    ) -> None:
        """Writes the service's address for this user's processes, and its limits for runners.

        A service that does not answer yet has no address.
        """
        folders = None if files is None else [str(path) for path in files]
        facts: dict[str, object] = {
            "url": url,
            "certificate": certificate,
            "files": folders,
            "capacity": capacity,
        }
        facts["placement"] = dataclasses.asdict(placement or Placement())
        write(self.path / "endpoint.json", json.dumps(facts))


def write(path: Path, text: str) -> None:
    """Replaces a file atomically: readers see the old or new text. Only its owner can read it."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(name, path)


def write_new(path: Path, text: str) -> None:
    """Makes a file that must not exist yet; it is complete from the first moment.

    Raises:
        FileExistsError: it exists.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    # unlike a rename, a link does not replace a file that another process has made in the meantime
    try:
        os.link(name, path)
    finally:
        os.unlink(name)


def try_lock(path: Path) -> IO[str] | None:
    """Returns an open file, locked while this process holds it; None if another holds the lock."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = path.open("a")
    # a lock of the open file, and not of the process, which would lose it with any other descriptor
    # of the file
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))
    except BlockingIOError:
        file.close()
        return None
    return file


def is_locked(path: Path) -> bool:
    """Returns whether any process holds the lock on a file."""
    if not path.exists():
        return False
    # a query that takes no lock: a process that wants the lock at that moment would be refused
    with path.open() as file:
        found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
        return struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK


_FLOCK = "@hhqqi4x"  # struct flock of fcntl(2): type, whence, start, length, process


def _whole_file(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


@functools.cache
def _keys(path: Path) -> tuple[str, str]:
    if not path.exists():
        made = {
            "access_key": "SYRT" + secrets.token_hex(8).upper(),
            "secret_key": secrets.token_urlsafe(30),
        }
        with contextlib.suppress(FileExistsError):
            write_new(path, json.dumps(made))
    try:
        found = json.loads(path.read_text())
        return str(found["access_key"]), str(found["secret_key"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is damaged: it should hold `access_key` and `secret_key` as JSON. Remove it:"
            " the next command makes new keys, which clients then need."
        ) from error
