"""Processes that need not import the frameworks first: each is a fork of one that has done so."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from syrtos.errors import LaunchError
from syrtos.launch.processes import zygote
from syrtos.launch.processes.deaths import zombie_exit_code
from syrtos.launch.processes.zygote_process import ZygoteProcess

_LONGEST_IMPORT = 600.0  # seconds
_LOOK = 0.1  # seconds between two looks at what else ends a wait


@dataclasses.dataclass(frozen=True)
class Command:
    """The call that a process is to run.

    Attributes:
        argv: ``("-m", module, ...)`` or ``(script, ...)``.
        env: the whole environment of the process.
        cwd: the folder in which it begins.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str = "."


class Zygote:
    """A process that imports modules, and forks; it ends with this one.

    Attributes:
        path: the socket at which a `Family` asks it for processes.
        modules: the names of the modules that its processes find when they import them.
        process: the interpreter.
    """

    SOCKET = "socket"

    def __init__(
        self,
        modules: Mapping[str, str],
        env: Mapping[str, str],
        libraries: Sequence[str] = (),
        shared_libraries: Sequence[str] = (),
        compare: bool = False,
        idle: bool = False,
        home: Path | None = None,
        life: IO[bytes] | None = None,
        process: ZygoteProcess | None = None,
    ) -> None:
        """Starts the process.

        Args:
            modules: the modules that it imports, each with the file that it must have, or an empty
                text. The forked processes find them when they import them.
            env: the environment in which it imports.
            libraries: further modules that it imports. The forked processes find them imported.
            shared_libraries: paths of shared libraries that it loads, if they are there.
            compare: whether a forked process ends that imports in another environment than ``env``.
            idle: whether it imports only while the processors have nothing else to do.
            home: a folder for its socket, which it removes at its end; else one is made.
            life: a stream with whose end it ends, in place of the end of this process.
            process: an interpreter that waits for its order, in place of a new one.

        Raises:
            OSError: no process can be started.
        """
        self._folder, self.modules = None, tuple(modules)
        if home is None:
            self._folder = tempfile.TemporaryDirectory(prefix="syrtos-")
            home = Path(self._folder.name)
        self.path = str(home / self.SOCKET)
        order = {
            "path": self.path,
            "modules": dict(modules),
            "libraries": list(libraries),
            "shared_libraries": list(shared_libraries),
            "compare": compare,
            "idle": idle,
        }
        if process is not None:
            try:
                process.give(order, env)
            except OSError:
                # It has ended.
                process.end()
                process = None
        self.process = process or ZygoteProcess(env, order, life)

    def wait(self) -> None:
        """Waits until the zygote can be asked for processes; it answers once it has imported.

        Raises:
            LaunchError: it has ended.
        """
        while self.lives():
            if os.path.exists(self.path):
                return
            time.sleep(0.005)
        raise LaunchError(
            f"The process that imports the frameworks once has ended:\n{self.printed_text}"
        )

    def is_ready(self) -> bool:
        """Returns whether the zygote has imported everything, and answers at once."""
        return os.path.exists(zygote.marker_path(self.path)) and self.lives()

    def lives(self) -> bool:
        """Returns whether the zygote runs, and so can still fork."""
        return self.process.lives()

    def close(self) -> None:
        """Ends the zygote, and the processes that it has forked and that still run."""
        self.process.end()
        if self._folder:
            self._folder.cleanup()

    @property
    def printed_text(self) -> str:
        """The text that the zygote has printed."""
        return self.process.printed_text


class Family:
    """Processes that one zygote has forked; they are killed when it is closed."""

    def __init__(
        self,
        path: str,
        patience: float = _LONGEST_IMPORT,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Connects to the zygote at socket ``path``.

        It must answer within ``patience`` seconds, and is waited for until ``over`` returns True.
        """
        self._patience, self._over = patience, over
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(path)
        self._unheard: list[dict[str, int]] = []
        self.pids: list[int] = []

    def fork(self, command: Command, files: Sequence[int]) -> int:
        """Starts a process and returns its number.

        Args:
            command: the call that it runs.
            files: descriptors for its standard input, output and error, and a fourth for PMI.
        """
        request = {
            "argv": list(command.argv),
            "env": dict(command.env),
            "cwd": os.path.abspath(command.cwd),
        }
        socket.send_fds(self._connection, [json.dumps(request).encode()], list(files))
        deadline = time.monotonic() + self._patience
        while "status" in (heard := self._hear_until(deadline)):
            self._unheard.append(heard)
        self.pids.append(heard["pid"])
        return heard["pid"]

    def _hear_until(self, deadline: float) -> dict[str, int]:
        """Returns the zygote's next message.

        Raises:
            LaunchError: there is none at the ``deadline``, or something else ends the wait.
        """
        while time.monotonic() < deadline and not self._over():
            self._connection.settimeout(min(_LOOK, self._patience))
            with contextlib.suppress(TimeoutError):
                return self._hear()
        raise LaunchError(
            f"The process that imports for others has not answered in {self._patience:g} s."
        )

    def wait(self, timeout: float | None = None) -> tuple[int, int]:
        """Returns the number and the exit code of the next process that ends.

        The code is negative for a signal.

        Raises:
            TimeoutError: no process has ended within ``timeout`` seconds.
        """
        self._connection.settimeout(timeout)
        heard = self._unheard.pop(0) if self._unheard else self._hear()
        self.pids.remove(heard["pid"])
        return heard["pid"], os.waitstatus_to_exitcode(heard["status"])

    def _hear(self) -> dict[str, int]:
        # The socket is one of packets: each has one whole message.
        text = self._connection.recv(1000)
        if not text:
            raise LaunchError(
                "The process that imports for others has ended; its output may have the reason."
            )
        return json.loads(text)

    def close(self) -> None:
        """Ends the processes that still run, and closes the connection to the zygote."""
        self._connection.close()


class Forked:
    """A single process of a zygote, with the interface of `subprocess.Popen`.

    The process is killed when the process that has started it ends.
    """

    def __init__(
        self,
        path: str,
        command: Command,
        files: Sequence[int],
        patience: float = _LONGEST_IMPORT,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Starts the process; the arguments are those of `Family` and `Family.fork`."""
        self._family = Family(path, patience, over)
        try:
            self.pid = self._family.fork(command, files)
        except BaseException:
            self._family.close()
            raise

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the process and returns its exit code, negative for a signal.

        A process whose zygote was killed is killed too: its code is that of SIGKILL. Where the
        zygote is stopped, and reports no end, the kernel knows the code.

        Raises:
            TimeoutError: the process has not ended within ``timeout`` seconds.
        """
        try:
            code = self._family.wait(timeout)[1]
        except TimeoutError:
            if (unreported := zombie_exit_code(self.pid)) is None:
                raise
            code = unreported
        except (LaunchError, ConnectionError):
            code = -signal.SIGKILL
        self._family.close()
        return code
