"""Starts `syrtos run` as a user does, watches what belongs to it, and proves that nothing of it is left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

import forking

SCRIPTS = Path(__file__).parent / "scripts"
HOST = os.uname().nodename

_SYRTOS = Path(sys.executable).with_name("syrtos")
_RUN, _RESUME = ("run", "--run-dir", "run"), ("resume", "run")
_MARK = "SYRTOS_FAULTS_RUN"
_PR_CAPBSET_DROP = 24
_LISTENS = "0A"  # as the kernel writes TCP_LISTEN
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


class Run:
    """One `syrtos run`, in a folder of its own.

    Its workers are new interpreters, or ``forked``, which spares them the import of TensorFlow.

    Attributes:
        code: its exit code, once it has ended.
        seconds: how long it took, or how long it took since `mark_time`.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        forked: bool = False,
        resume: bool = False,
    ) -> None:
        """``resume``: `syrtos resume` in the place of `syrtos run`."""
        self._folder = folder
        environment = {**os.environ, **(env or {})}
        command = forking.command("syrtos", environment) if forked else [str(_SYRTOS)]
        self._mark = uuid.uuid4().hex
        self._ports: dict[str, int] = {}  # by inode
        self._segments: set[str] = set()
        self.commands: set[str] = set()
        self.pids: set[int] = set()
        # Processes that were there before need no look at their environment.
        self._strangers = {process.pid: process.create_time() for process in psutil.process_iter()}
        self._next_look = 0.0
        self._since = time.monotonic()
        self.seconds = 0.0
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            self.process = subprocess.Popen(
                [*command, *(_RESUME if resume else _RUN), *map(str, arguments)],
                cwd=folder,
                env={**environment, _MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=_like_any_user,
            )

    # -- while it runs -------------------------------------------------------------------------

    def until(self, done: Callable[[], bool], within: float) -> None:
        """Watches the run until ``done()``, and fails the test if that takes too long.

        ``within`` are seconds of a machine that has nothing else to do; where programs wait for cores, all takes longer.
        """
        began = time.monotonic()
        while not done():
            if time.monotonic() - began > within * _waiting_for_cores():
                self.kill()
                raise AssertionError(
                    f"Nothing happened within {within} s.\n{self.stderr}\n{self.logs}"
                )
            if time.monotonic() > self._next_look:
                began_to_look = time.monotonic()
                self._watch()
                # Looking takes a quarter of a core at most: beside it run the processes that are looked at.
                self._next_look = time.monotonic() + max(
                    0.2, 3 * (time.monotonic() - began_to_look)
                )
            time.sleep(0.05)

    def until_exist(self, *names: str, within: float = 60.0) -> None:
        """Waits for files that the script writes."""
        self.until(
            lambda: self.ended() or all((self._folder / name).exists() for name in names), within
        )
        assert all((self._folder / name).exists() for name in names), self.stderr
        self._watch()

    def mark_time(self) -> None:
        """Counts seconds from now on."""
        self._since = time.monotonic()

    def ends(self, within: float) -> Run:
        """Waits for the end of the run."""
        self.until(self.ended, within)
        self.seconds = time.monotonic() - self._since
        return self

    def ended(self) -> bool:
        """Whether the command has returned."""
        return self.process.poll() is not None

    def send(self, number: int) -> None:
        """Sends the command a signal, and counts seconds from now on."""
        self._watch()
        self.mark_time()
        self.process.send_signal(number)

    def kill(self) -> None:
        """Ends everything, so that a failed test leaves nothing to the next."""
        for member in [self.process, *self._members()]:
            with contextlib.suppress(psutil.Error, OSError):
                member.kill()
        self.process.wait()

    def _watch(self) -> None:
        for member in self._members():
            self.pids.add(member.pid)
            with contextlib.suppress(psutil.Error):
                self.commands.add(" ".join(member.cmdline()))
            with contextlib.suppress(psutil.Error):
                self._segments |= _segments_of(member.pid)
                mine = _sockets_of(member.pid)
                self._ports |= {i: port for i, port in _listening(member.pid).items() if i in mine}

    def _members(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if self._strangers.get(process.pid) == process.create_time():
                    continue
                ours = process.environ().get(_MARK) == self._mark or process.cwd() == str(
                    self._folder
                )
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    yield process

    # -- after it has ended --------------------------------------------------------------------

    @property
    def code(self) -> int | None:
        return self.process.returncode

    @property
    def stdout(self) -> str:
        return (self._folder / "stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return (self._folder / "stderr").read_text(errors="replace")

    @property
    def logs(self) -> str:
        """All workers' logs, for messages of failing tests."""
        return "\n".join(
            f"-- {path.name}\n{path.read_text()}"
            for path in sorted(self._folder.glob("run/logs/*"))
        )

    def log(self, rank: int) -> str:
        """One worker's log."""
        return self.log_path(rank).read_text(errors="replace")

    def log_path(self, rank: int) -> Path:
        """Where one worker's log must be."""
        return self._folder / "run" / "logs" / f"rank-{rank}.log"

    def check_failure(self, rank: int, code: int, *texts: str) -> None:
        """The report names rank, host and log, holds ``texts``, and the exit code is passed on."""
        expected = (f"rank {rank}", HOST, str(self.log_path(rank)), *texts)
        missing = [text for text in expected if text not in self.stderr]
        assert not missing, f"not in stderr: {missing}\n{self.stderr}\n{self.logs}"
        assert self.code == code, self.stderr

    def check_nothing_left(self, within: float = 2.0) -> None:
        """No process, port or shared memory of the run."""
        assert len(self.pids) > 1, "the run was never seen"
        left = self._left()
        deadline = time.monotonic() + within
        while any(left.values()) and time.monotonic() < deadline:
            time.sleep(0.1)
            left = self._left()
        self._tidy()
        assert not any(left.values()), left

    def _left(self) -> dict[str, list[str]]:
        listening = _listening("self")
        return {
            "processes": [" ".join(member.cmdline()) for member in self._members()],
            "ports": [str(self._ports[inode]) for inode in sorted(self._ports.keys() & listening)],
            "segments": [path for path in sorted(self._segments) if Path(path).exists()],
        }

    def _tidy(self) -> None:
        self.kill()
        for path in self._segments:
            Path(path).unlink(missing_ok=True)


def run(
    folder: Path,
    *arguments: str | Path,
    within: float = 60.0,
    env: Mapping[str, str] | None = None,
    forked: bool = False,
    resume: bool = False,
) -> Run:
    """Runs `syrtos run ARGUMENTS` to its end."""
    return Run(folder, *arguments, env=env, forked=forked, resume=resume).ends(within)


def _waiting_for_cores() -> float:
    """How many programs want each core, or 1."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def _segments_of(pid: int) -> set[str]:
    """The shared memory that a process has mapped. psutil's `memory_maps` takes 40 ms for one with TensorFlow, as it has pages counted."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return {line.split(maxsplit=5)[5] for line in lines if " /dev/shm/" in line}
    return set()


def _listening(pid: int | str) -> dict[str, int]:
    """Sockets that listen in a process's network, by inode, with their ports: a port may be another program's a moment later (proc(5), `net/tcp`)."""
    found = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS:
                    found[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return found


def _sockets_of(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(
                    os.readlink(f"/proc/{pid}/fd/{name}").removeprefix("socket:[").removesuffix("]")
                )
    return found


def _like_any_user() -> None:
    """Lets file permissions count for root too."""
    if os.geteuid() == 0:
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability)
