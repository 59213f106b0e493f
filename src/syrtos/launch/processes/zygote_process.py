"""The interpreter that runs `zygote.py`; it may be started before it is known what to import.

Few modules are imported here: the command line starts the interpreter before it imports what it
needs itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any

from syrtos.launch.processes import signalling

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zygote.py")
# Variables that are read once before an order comes: by the interpreter, its loader, and NumPy with
# its library of linear algebra.
_READ_AT_START = (
    "PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "NPY_", "OMP_", "OPENBLAS_", "GOTO_", "MKL_",
)  # fmt: skip
# A process that is watched from its start is not forked: coverage.py, and debuggers (debugpy,
# PyCharm's).
_WATCHERS = ("COVERAGE_PROCESS_", "DEBUGPY_", "PYDEVD_", "PYTHONINSPECT", "PYTHONBREAKPOINT")


def is_watched(env: Mapping[str, str]) -> bool:
    """Returns whether coverage.py or a debugger watches processes from their start.

    Such processes can't be forked.
    """
    return any(name.startswith(_WATCHERS) for name in env)


class ZygoteProcess:
    """A new interpreter with `zygote.py`; it ends with this process, or if no order ever comes."""

    def __init__(
        self,
        env: Mapping[str, str],
        order: Mapping[str, Any] | None = None,
        life: IO[bytes] | None = None,
    ) -> None:
        """Starts the interpreter.

        Args:
            env: its environment.
            order: what `zygote.py` is to do; None: that is said later, by `give`.
            life: a stream with whose end it ends, in place of the end of this process.

        Raises:
            OSError: there are too many processes, or too little memory.
        """
        self._env = dict(env)
        self._said = os.fdopen(os.memfd_create("zygote"), "w+b", buffering=0)
        self._process = subprocess.Popen(
            [sys.executable, _PROGRAM, *([] if order is None else [json.dumps(order)])],
            env=env,
            stdin=life or subprocess.PIPE,
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,
            preexec_fn=None if life else signalling.death_with_parent(),
        )

    def can_take(self, env: Mapping[str, str]) -> bool:
        """Returns whether an interpreter that is started with ``env`` would be as this one is."""
        names = {name for name in {*env, *self._env} if name.startswith(_READ_AT_START)}
        return self.lives() and all(env.get(name) == self._env.get(name) for name in names)

    def give(self, order: Mapping[str, Any], env: Mapping[str, str]) -> None:
        """Tells an interpreter started without an order what to do, and in which environment.

        Raises:
            OSError: it has ended.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**order, "env": dict(env)}).encode() + b"\n")
        self._process.stdin.flush()

    def lives(self) -> bool:
        """Returns whether the process runs."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Waits for the end of the process."""
        self._process.wait()

    def end(self) -> None:
        """Ends the process, and with it those that it has forked (PR_SET_PDEATHSIG)."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            # What could not be written to it is of no use any more.
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._said.close()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def printed_text(self) -> str:
        """The text that the process has printed; empty once it was ended by `end`."""
        if self._said.closed:
            return ""
        file = self._said.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")


class EarlyStart:
    """An interpreter that was started early, or none, until a zygote takes it or it is ended."""

    def __init__(self, process: ZygoteProcess | None = None) -> None:
        self._process = process

    def take(self, env: Mapping[str, str]) -> ZygoteProcess | None:
        """Returns the interpreter for a zygote that imports with ``env``; None if none fits."""
        process = self._process
        if process is None or not process.can_take(env):
            return None
        self._process = None
        return process

    def end(self) -> None:
        """Ends the interpreter, unless it was taken."""
        if self._process is not None:
            self._process.end()
        self._process = None
