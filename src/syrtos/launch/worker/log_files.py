"""The log of a worker, and its report of a failure: files without which the worker goes on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from syrtos.launch.terminal import streams


def _program(name: str) -> str:
    """Returns the path of a program; it is also found where PATH is empty."""
    return shutil.which(name) or shutil.which(name, path=os.defpath) or name


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
        self._tees: list[subprocess.Popen[bytes]] = []
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
        tee = subprocess.Popen(
            [_program("tee"), "-ia", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=os.dup(stream),
            start_new_session=True,
            restore_signals=False,
        )
        assert tee.stdin is not None
        self._tees.append(tee)
        return tee.stdin.fileno()

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
        for tee in self._tees:
            assert tee.stdin is not None
            tee.stdin.close()
        for tee in self._tees:
            try:
                tee.wait(timeout=2)
            except subprocess.TimeoutExpired:
                # a child of the script still holds our output, and may for long
                tee.terminate()
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
