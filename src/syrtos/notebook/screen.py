"""The output of `syrtos run`, shown in the cell that waits for it."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import selectors
import subprocess
import sys
from collections.abc import Callable
from typing import IO

_PIECE = 1 << 16
_TAIL = 1 << 16  # characters of the errors that are kept
# How the launcher's report on a failure begins.
_REPORT = re.compile(r"(?:\A|\n)\nsyrtos: ")
_FILE = re.compile(r'File "([^"]+)"')
# A function is gone with its notebook: no other process can go on with it.
_OF_RESUMING = re.compile(r"syrtos: `syrtos resume .*\n?")


class ShownStream:
    """A standard stream of this process, as it is at each write: a cell has its own.

    Attributes:
        before_write: gets the data of a write; None: nobody wants it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.before_write: Callable[[memoryview], None] | None = None

    def show(self, text: str) -> None:
        """Writes a text at once."""
        if not text:
            return
        if self.before_write:
            self.before_write(memoryview(text.encode(errors="replace")))
        stream: IO[str] = getattr(sys, self._name)
        stream.write(text)
        stream.flush()

    def descriptor(self) -> int:
        """Returns the descriptor that is written to; -1: none, as in a notebook's cell."""
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream = getattr(sys, self._name)
            return int(stream.fileno()) if stream.isatty() else -1
        return -1


class Screen:
    """Passes on the output of a process, except for its report on a failure.

    The report is kept back, since the exception has it.

    Attributes:
        terminal: the streams that are shown on a terminal, by their descriptors.
    """

    def __init__(self) -> None:
        self._held = ""
        self._said = ""
        self._out, self._err = ShownStream("stdout"), ShownStream("stderr")
        if self._out.descriptor() == self._err.descriptor() >= 0:  # as by `redirect_stdout`
            self._out = self._err
        streams = {stream.descriptor(): stream for stream in (self._out, self._err)}
        self.terminal = {number: stream for number, stream in streams.items() if number >= 0}

    def follow(self, process: subprocess.Popen[bytes]) -> None:
        """Passes on the output of a process until both of its pipes have ended."""
        assert process.stdout is not None
        assert process.stderr is not None
        decoders = {
            pipe: codecs.getincrementaldecoder("utf-8")("replace")
            for pipe in (process.stdout, process.stderr)
        }
        with selectors.DefaultSelector() as selector:
            for pipe in decoders:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                for pipe in [
                    pipe for key, _ in selector.select() for pipe in decoders if pipe is key.fileobj
                ]:
                    piece = os.read(pipe.fileno(), _PIECE)
                    if not piece:
                        selector.unregister(pipe)
                    text = decoders[pipe].decode(piece, final=not piece)
                    self._error(text) if pipe is process.stderr else self._out.show(text)

    def _error(self, text: str) -> None:
        self._said = (self._said + text)[-_TAIL:]
        self._held += text
        begins = _REPORT.search(self._held)
        # an empty line may be the beginning of a report
        end = (
            begins.start()
            if begins
            else len(self._held.rstrip("\n"))
            if self._held.endswith("\n\n")
            else len(self._held)
        )
        self._err.show(self._held[:end])
        self._held = self._held[end:]

    def release(self) -> None:
        """Shows the text that was kept back."""
        self._err.show(_OF_RESUMING.sub("", self._held))
        self._held = ""

    @property
    def has_report(self) -> bool:
        """Returns whether a report was kept back, which means that workers had been started."""
        return bool(self._held.strip())

    def report(self) -> str:
        """Returns the launcher's report on a failure, or else its last line.

        The last line is about an option that the launcher has refused.
        """
        text = _OF_RESUMING.sub("", self._held).strip() or self._said.strip().rpartition("\n")[2]
        return _with_cells(text.removeprefix("syrtos: "))


def _with_cells(text: str) -> str:
    """Returns a text in which `Cell In[3]` replaces the names that IPython has for its cells."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        return text

    def cell(found: re.Match[str]) -> str:
        known = shell.compile.format_code_name(found[1])
        return " ".join(known) if known else found[0]

    return _FILE.sub(cell, text)
