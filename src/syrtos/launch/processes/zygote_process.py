"""The interpreter that runs `zygote.py`, which may be started before it is known what it is to import.

Few modules are imported here: the command line starts the interpreter before it imports what it
needs itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any

from syrtos.launch.processes import signalling

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zygote.py")
# Variables that an interpreter reads once, when it starts, and what `zygote.py` loads before it has
# its order: NumPy with its library of linear algebra, and MPI's library.
_READ_AT_START = (
    "PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "NPY_", "OMP_", "OPENBLAS_", "GOTO_", "MKL_", "UCX_LOG", "UCX_HANDLE",
)  # fmt: skip


class ZygoteProcess:
    """A new interpreter with `zygote.py`; it ends with this process, or where its order never comes."""

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
        """
        self._env = dict(env)
        self._said = os.memfd_create("zygote")
        self._process = subprocess.Popen(
            [sys.executable, _PROGRAM, *([] if order is None else [json.dumps(order)])],
            env=env,
            stdin=life or subprocess.PIPE,
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,
            preexec_fn=None if life else signalling.die_with_parent,
        )

    def can_take(self, env: Mapping[str, str]) -> bool:
        """Returns whether an interpreter that is started with ``env`` would be as this one is."""
        names = {name for name in {*env, *self._env} if name.startswith(_READ_AT_START)}
        return self.lives() and all(env.get(name) == self._env.get(name) for name in names)

    def give(self, order: Mapping[str, Any], env: Mapping[str, str]) -> None:
        """Says to an interpreter that was started without an order what to do, and in which environment.

        Raises:
            BrokenPipeError: it has ended.
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
            self._process.stdin.close()
        os.close(self._said)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def printed_text(self) -> str:
        """The text that the process has printed."""
        return os.pread(self._said, os.fstat(self._said).st_size, 0).decode(errors="replace")
