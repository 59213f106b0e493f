"""The log of a worker, and its report of a failure: files without which the worker goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from syrtos.launch.processes import signalling
from syrtos.launch.terminal import streams


def _program(name: str) -> str:
    """Returns the path of a program; it is also found where PATH is empty."""
    return shutil.which(name) or shutil.which(name, path=os.defpath) or name


# Starts tee, which reads the input of the shell, and prints its number. It is no child of the worker:
# a script may wait for its children, or end them.
_DETACHED = 'exec 3<&0; "$0" -ia "$1" <&3 3<&- & echo $! >&2'


# seconds for what was printed last
_LAST_OUTPUT = 2.0


@dataclasses.dataclass(frozen=True)
class _Tee:
    """A process that copies what it reads to the log and to another target.

    Attributes:
        pid: its number; 0: not known.
        source: the descriptor of what it reads.
        errors: its standard error, which no other process has.
    """

    pid: int
    source: int
    errors: IO[bytes]

    def has_ended(self, seconds: float) -> bool:
        """Waits at most ``seconds`` for its end; returns whether it has come."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        # the script may have closed it
        with contextlib.suppress(OSError):
            poll.register(self.errors, select.POLLIN)
            while True:
                left = deadline - time.monotonic()
                if poll.poll(max(1000 * left, 0)) and not os.read(self.errors.fileno(), 4096):
                    return True
                if left <= 0:
                    break
        while (runs := os.path.exists(f"/proc/{self.pid}")) and time.monotonic() < deadline:
            time.sleep(0.02)
        return not runs


class WorkerLog:
    """The log that standard output and error of this process go to.

    Attributes:
        path: the file; the null device where none can be made.
    """

    def __init__(self, path: Path, control: int, is_shown: bool) -> None:
        """Begins the log.

        Args:
            path: the file.
            control: the descriptor of standard error before.
            is_shown: whether the output goes to where it went before, too.
        """
        self._control = control
        self._tees: list[_Tee] = []
        # A full disk is no error of the script, which prints.
        streams.make_unfailing()
        self.path = _begin(path)
        # Both streams append to it: neither writes over what the other has written.
        for stream in (1, 2):
            os.dup2(
                self._tee(stream) if is_shown else os.open(self.path, os.O_WRONLY | os.O_APPEND),
                stream,
            )

    def _tee(self, stream: int) -> int:
        """Returns a descriptor whose output goes to the log and to ``stream``'s present target."""
        # It outlives Ctrl-C (-i, and a session of its own): the last lines of the script come after
        # it. It outlives a reader of the target, too: SIGPIPE stays ignored in it.
        reader, writer = os.pipe()
        shell = subprocess.Popen(
            [_program("sh"), "-c", _DETACHED, _program("tee"), str(self.path)],
            stdin=reader,
            stdout=os.dup(stream),
            stderr=subprocess.PIPE,
            start_new_session=True,
            restore_signals=False,
        )
        os.close(reader)
        assert shell.stderr is not None
        # warnings may come before it, as of a locale that is missing
        number = next((line for line in shell.stderr if line.strip().isdigit()), b"0")
        # the pipe of its errors closes when tee ends
        self._tees.append(_Tee(int(number), writer, shell.stderr))
        shell.wait()
        return writer

    def append(self, text: str) -> None:
        """Writes a text into the log alone, as far as there is room; output goes there no more."""
        # The streams may still hold earlier output of the script, which goes before this text.
        self.close()
        with (
            contextlib.suppress(OSError),
            self.path.open("a", encoding="utf-8", errors="replace") as log,
        ):
            log.write(text)

    def write_failure(self, facts: Mapping[str, object]) -> None:
        """Writes the facts of a failure beside the log, for a launcher that has no message of it."""
        if self.path != Path(os.devnull):
            with contextlib.suppress(OSError):
                self.path.with_suffix(".failure").write_text(json.dumps(facts))

    def close(self) -> None:
        """Passes on all output so far; what follows goes to where it went before the log."""
        streams.flush()
        os.dup2(self._control, 1)
        os.dup2(self._control, 2)
        if any(tee.pid and tee.has_ended(0.0) for tee in self._tees):
            lost = "syrtos: output is missing, here and in the log: its process `tee` was ended\n"
            os.write(self._control, lost.encode())
        for tee in self._tees:
            # the script may have closed it
            with contextlib.suppress(OSError):
                os.close(tee.source)
        for tee in self._tees:
            if not tee.has_ended(_LAST_OUTPUT) and tee.pid:
                # a child of the script still holds our output, and may for long
                signalling.to_process(tee.pid, signal.SIGTERM)
            with contextlib.suppress(OSError):
                tee.errors.close()
        self._tees.clear()


def _begin(path: Path) -> Path:
    """Makes an empty log and returns its path; where it can't be made, that of the null device."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    except OSError as error:
        print(f"syrtos: {path} can't be written: {error.strerror}", file=sys.stderr, flush=True)
        return Path(os.devnull)
    return path
