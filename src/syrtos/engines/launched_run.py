"""A run whose launcher is a process of this machine, or of another that sees the same folder."""

from __future__ import annotations

import shlex
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from syrtos.engines.engine import RunState, Submitted, growing, read_end, read_from
from syrtos.errors import ConfigurationError
from syrtos.launch.generations import has_snapshot
from syrtos.launch.run_lock import OUTPUT, Launcher, is_going_on, launcher_of
from syrtos.run_dir import RunDir

_EVERY = 0.5  # seconds between two looks at a log that grows


class LaunchedRun(Submitted):
    """The run of one launcher."""

    def __init__(self, run_dir: Path, launcher: Launcher) -> None:
        self._run_dir, self.launcher = run_dir, launcher
        self.name = f"launcher {launcher.pid}"

    def is_in(self, run_dir: Path) -> bool:
        """Returns whether this is the folder of the run, and no copy of it."""
        return self._run_dir.resolve() == run_dir.resolve()

    def state(self) -> RunState:
        if self.launcher.runs():
            return RunState("running")
        if ended := self._read_end():
            return ended
        if self.launcher.is_elsewhere:
            return RunState("running", self._describe_elsewhere())
        from_where = (
            "goes on from its last snapshot"
            if has_snapshot(self._run_dir)
            else "begins it anew, as it had no snapshot yet"
        )
        goes_on = f" `syrtos resume {shlex.quote(str(self._run_dir))}` {from_where}."
        in_background = self.launcher.in_background
        place = self._run_dir / OUTPUT if in_background else RunDir(self._run_dir).newest().logs
        return RunState(
            "failed", f"The launcher ended without recording a result. See {place}.{goes_on}"
        )

    def _read_end(self) -> RunState | None:
        """Returns how the run ended, if it was this launcher that has written it down."""
        last = launcher_of(self._run_dir)
        # One that has not come as far as the lock has left the end of the run before.
        return read_end(self._run_dir) if last is None or self.launcher.is_same(last) else None

    def _describe_elsewhere(self) -> str:
        host = self.launcher.host
        if is_going_on(self._run_dir):
            return f"Its launcher is on {host}."
        return f"It was started on {host}, and only there it is known whether it still runs."

    def output(self, follow: bool) -> Iterator[bytes]:
        if self.launcher.in_background:
            return growing(self._run_dir / OUTPUT, self, follow)
        return self._logs(follow)

    def _logs(self, follow: bool) -> Iterator[bytes]:
        """Yields the log of rank 0, of the newest generation and of those that come meanwhile."""
        shown, position, over = None, 0, not follow
        while True:
            folders = RunDir(self._run_dir).generations()
            start = folders.index(shown) if shown in folders else len(folders) - 1
            for folder in folders[start:]:
                if folder != shown:
                    shown, position = folder, 0
                for piece in read_from(RunDir(folder).log(0), position):
                    position += len(piece)
                    yield piece
            if over:
                return
            # what was written before its end is read once more
            over = self.state().is_over
            if not over:
                time.sleep(_EVERY)

    def stop(self, at_once: bool = False) -> None:
        if self.launcher.send(signal.SIGKILL if at_once else signal.SIGTERM):
            # One that was suspended takes no signal before it goes on.
            self.launcher.send(signal.SIGCONT)
            return
        if self.launcher.is_elsewhere and not self._read_end():
            raise ConfigurationError(
                f"The run in {self._run_dir} was started on {self.launcher.host}, and this is"
                f" {socket.gethostname()}: give the command there."
            )
