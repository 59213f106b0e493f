"""Processes that need not import the frameworks first: forked by a zygote, alone or as the workers of a world."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from syrtos import settings
from syrtos.errors import LaunchError
from syrtos.launch.pmi import ProcessManager

# Variables that frameworks read when they are imported: a process gets a zygote that has imported them with the same values.
_READ_AT_IMPORT = ("JAX_", "KERAS_", "TF_USE_", "TF_ENABLE_", "TF_XLA_", "XLA_", "CUDA_", "LD_", "PYTHON")
# One thread for NumPy: a fork keeps none of the others.
_OF_ZYGOTES = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "1"}
_LONGEST_IMPORT = 600.0  # seconds


@dataclasses.dataclass(frozen=True)
class Command:
    """The call that a process is to run.

    Attributes:
        argv: ``("-m", module, ...)`` or ``(script, ...)``.
        env: all of its environment.
        cwd: where it begins.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str = "."


class Zygote:
    """A process that has imported ``modules``, and forks; it ends with this one.

    Attributes:
        path: the socket at which `Family` and `World` ask it for processes.
    """

    def __init__(self, modules: Sequence[str], env: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="syrtos-")
        self.path = str(Path(self._folder.name, "socket"))
        log = Path(self._folder.name, "log")
        command = [sys.executable, str(Path(__file__).with_name("zygote.py")), self.path, *modules]
        with log.open("wb") as said:
            self._process = subprocess.Popen(command, env={**env, **_OF_ZYGOTES}, stdin=subprocess.PIPE, stderr=said)
        while not os.path.exists(self.path):
            if not self.lives():
                raise LaunchError(f"The process that imports the frameworks once has ended:\n{log.read_text()}")
            time.sleep(0.005)

    def lives(self) -> bool:
        """Whether it can still fork."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends it, and whatever it has forked that still runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


def zygote(env: Mapping[str, str]) -> Zygote:
    """This process's zygote for ``env``, started when it is asked for first: with TensorFlow and the Keras that ``env`` chooses."""
    keras = "tf_keras" if env.get("TF_USE_LEGACY_KERAS", "") in ("1", "true", "True") else "keras"
    modules = tuple(name for name in (keras, "tensorflow") if importlib.util.find_spec(name))
    read = tuple(sorted(item for item in env.items() if item[0].startswith(_READ_AT_IMPORT)))
    if not _zygote(modules, read).lives():
        _zygote.cache_clear()
    return _zygote(modules, read)


@functools.cache
def _zygote(modules: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> Zygote:
    rest = {name: value for name, value in settings.environment().items() if not name.startswith(_READ_AT_IMPORT)}
    found = Zygote(modules, {**rest, **dict(env)})
    atexit.register(found.close)
    return found


class Family:
    """Processes that one zygote has forked; they are killed when it is closed."""

    def __init__(self, path: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(path)
        self._unheard: list[dict[str, int]] = []
        self.pids: list[int] = []

    def fork(self, command: Command, files: Sequence[int]) -> int:
        """Starts a process with these as standard input, output and error, and a fourth for PMI; returns its number."""
        request = {"argv": list(command.argv), "env": dict(command.env), "cwd": os.path.abspath(command.cwd)}
        socket.send_fds(self._connection, [json.dumps(request).encode()], list(files))
        self._connection.settimeout(_LONGEST_IMPORT)
        try:
            while "status" in (heard := self._hear()):
                self._unheard.append(heard)
        except TimeoutError as error:
            raise LaunchError(
                f"The process that imports for others has not answered in {_LONGEST_IMPORT:g} s."
            ) from error
        self._connection.settimeout(None)
        self.pids.append(heard["pid"])
        return heard["pid"]

    def wait(self, timeout: float | None = None) -> tuple[int, int]:
        """The number and exit code of the next process that ends, negative for a signal.

        Raises:
            TimeoutError: none did within ``timeout`` seconds.
        """
        self._connection.settimeout(timeout)
        heard = self._unheard.pop(0) if self._unheard else self._hear()
        self._connection.settimeout(None)
        self.pids.remove(heard["pid"])
        return heard["pid"], os.waitstatus_to_exitcode(heard["status"])

    def _hear(self) -> dict[str, int]:
        text = self._connection.recv(1000)
        if not text:
            raise LaunchError("The process that imports for others has ended; its output may have the reason.")
        return json.loads(text)

    def signal(self, number: int) -> None:
        """Sends a signal to those that still run."""
        for pid in list(self.pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        """Ends those that still run, and listens to none any more."""
        self._connection.close()


class World(Family):
    """The workers of a world of this host: each finds the others by PMI when MPI starts in it."""

    def __init__(self, path: str, size: int, command: Command, files: Sequence[tuple[int, int, int]]) -> None:
        super().__init__(path)
        self._manager = manager = ProcessManager(size, end_all=lambda: self.signal(signal.SIGKILL))
        manager.start()
        self.ranks: dict[int, int] = {}
        for rank, end in enumerate(manager.ends):
            env = {"UCX_NET_DEVICES": "lo", **command.env, **manager.environment(rank, -1)}
            pid = self.fork(dataclasses.replace(command, env=env), (*files[rank], end.fileno()))
            self.ranks[pid] = rank
            end.close()

    def codes(self, timeout: float | None = None, spare: bool = False) -> dict[int, int]:
        """Waits for all; exit codes by rank, in the order in which they ended. One that fails ends the others, unless ``spare``.

        Raises:
            TimeoutError: not all have ended within ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        codes: dict[int, int] = {}
        while self.pids:
            pid, code = self.wait(None if deadline is None else max(deadline - time.monotonic(), 0.001))
            codes[self.ranks[pid]] = code
            if code and not spare:
                self.signal(signal.SIGKILL)
        return {**self._manager.aborted, **codes, **self._manager.aborted}
