"""The lock of a run directory, which one launcher holds at a time, and the launcher's identity.

The file of the lock names the process that has taken it last: what follows, stops or resumes a run
finds its launcher there, and nowhere else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from syrtos.errors import ConfigurationError
from syrtos.json_files import parse_line
from syrtos.launch import events

# The file of the lock.
LOCK = ".lock"
# A command that asks whether a run goes on may hold the lock for a moment.
_TRIES, _PAUSE = 25, 0.02
# The file in the run directory that the output of a run in the background goes to.
OUTPUT = "output.log"


@dataclasses.dataclass(frozen=True)
class Launcher:
    """A process that launches a run, known such that no other process is taken for it.

    Attributes:
        pid: its number.
        host: the name of its host.
        machine: the boot of that host, and the namespace of its process numbers.
        born: when it began, in ticks since boot.
        since: when this was written down, s since the epoch.
        in_background: whether its output goes to a file of the run directory.
    """

    pid: int
    host: str
    machine: str
    born: int
    since: float
    in_background: bool = False

    @classmethod
    def of(cls, pid: int, in_background: bool) -> Launcher:
        """Returns the identity of a process of this machine."""
        return cls(
            pid=pid,
            host=socket.gethostname(),
            machine=events.machine(),
            born=events.born(pid),
            since=time.time(),
            in_background=in_background,
        )

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Launcher | None:
        """Returns the launcher that was written down as ``facts``; None if they are damaged."""
        try:
            return cls(
                pid=int(facts["pid"]),
                host=str(facts["host"]),
                machine=str(facts["machine"]),
                born=int(facts["born"]),
                since=float(facts.get("since", 0.0)),
                # Facts of a run that was submitted are texts.
                in_background=str(facts.get("in_background")) == "True",
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    @property
    def is_elsewhere(self) -> bool:
        """Returns whether it was started on another host."""
        return self.host != socket.gethostname()

    def is_same(self, other: Launcher | None) -> bool:
        """Returns whether both are the same process."""
        return other is not None and (self.pid, self.born, self.machine) == (
            other.pid,
            other.born,
            other.machine,
        )

    def runs(self) -> bool:
        """Returns whether the process is there; False for one of another host."""
        # Elsewhere, or after a start of the machine, the number means another process.
        return self.machine == events.machine() and 0 < self.born == events.born(self.pid)

    def is_suspended(self) -> bool:
        """Returns whether a signal, as SIGSTOP or Ctrl-Z, holds the process up."""
        return self.runs() and events.stat(self.pid)[:1] in (["T"], ["t"])

    def send(self, number: int) -> bool:
        """Sends the process a signal; returns whether it was there to take it.

        Raises:
            ConfigurationError: it is a process of another user.
        """
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # The descriptor is of the process that has the number at this moment, and of no later
            # one: what is compared now is what gets the signal.
            if not self.runs():
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        except PermissionError as error:
            raise ConfigurationError(
                f"Launcher {self.pid} is a process of another user, who alone can stop it."
            ) from error
        finally:
            os.close(descriptor)
        return True


@contextlib.contextmanager
def taking_run_lock(run_dir: Path, launches: bool = True) -> Iterator[None]:
    """Context manager: no other process launches anything in this folder.

    This process is written down as the launcher, unless it only submits a run to one (``launches``).

    Raises:
        ConfigurationError: another process launches something in the folder.
    """
    try:
        descriptor = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        # The disk has no room for another file: nothing is known of other runs.
        yield
        return
    try:
        # The kernel drops the lock when this process ends, however it does.
        if not _take(descriptor):
            raise going_on_error(run_dir)
        if launches:
            _write_down(descriptor, Launcher.of(os.getpid(), _writes_into(run_dir)))
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    """Takes the lock; returns False if another process has it."""
    for number in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if number < _TRIES - 1:
                time.sleep(_PAUSE)
        except OSError:
            # The file system has no locks: nothing is known of other runs.
            return True
    return False


def _write_down(descriptor: int, launcher: Launcher) -> None:
    line = json.dumps(dataclasses.asdict(launcher)).encode() + b"\n"
    # A full disk is no reason not to run: others then know of the lock, and not of its holder.
    with contextlib.suppress(OSError):
        # Whoever reads meanwhile finds one whole first line: it is cut off after it is written.
        os.pwrite(descriptor, line, 0)
        os.ftruncate(descriptor, len(line))


def _writes_into(run_dir: Path) -> bool:
    """Returns whether the output of this process goes to a file of the run directory."""
    try:
        return os.path.samestat(os.fstat(1), os.stat(run_dir / OUTPUT))
    except OSError:
        return False


def launcher_of(run_dir: Path) -> Launcher | None:
    """Returns the last launcher in this folder, which may have ended; None if none is known.

    One that runs, and does not hold the lock, counts as ended: it is about to, or it runs in a
    folder that this one is a copy of.
    """
    try:
        facts = parse_line((run_dir / LOCK).read_bytes().partition(b"\n")[0])
    except OSError:
        return None
    launcher = Launcher.from_facts(facts) if facts else None
    if launcher and launcher.runs() and _is_held(run_dir) is False:
        return dataclasses.replace(launcher, born=0)
    return launcher


def is_going_on(run_dir: Path) -> bool:
    """Returns whether a launcher runs something in this folder; writes nothing into it."""
    launcher = launcher_of(run_dir)
    if launcher and launcher.runs():
        return True
    # A command that submits a run holds the lock for a moment too, on this machine.
    for _ in range(1 if launcher and launcher.is_elsewhere else _TRIES):
        if not _is_held(run_dir):
            return False
        time.sleep(_PAUSE)
    return True


def _is_held(run_dir: Path) -> bool | None:
    """Returns whether a process of this machine holds the lock; None if that can't be known."""
    try:
        with (run_dir / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # There is no folder, it is none of a run, or the file system has no locks.
        return None
    return False


def going_on_error(run_dir: Path) -> ConfigurationError:
    """Returns the error of a command in whose run directory another process runs something."""
    by = ""
    if launcher := launcher_of(run_dir):
        where = f" on {launcher.host}" * launcher.is_elsewhere
        by = f" Its launcher is process {launcher.pid}{where}."
    return ConfigurationError(
        f"A run in {run_dir} is going on.{by} `syrtos status {run_dir}` shows how far it is, and"
        f" `syrtos stop {run_dir}` ends it; for a further run name another folder with --run-dir."
    )
