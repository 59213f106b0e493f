"""Runs a plan to its end: passes output on, listens to the workers, forwards signals, leaves nothing behind."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import IO, Any

from syrtos.launch import events, leftovers
from syrtos.launch.plan import Plan


@dataclasses.dataclass
class Outcome:
    """How a run ended.

    Attributes:
        code: exit code: 0, the failing script's, or 128 + the signal that ended the run.
        failures: the workers' reports, in the order in which they came in.
        workers: host and process of every rank that started.
        noise: what the launcher of our MPI said, for failures that no worker reported.
    """

    code: int = 0
    failures: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    workers: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    noise: list[str] = dataclasses.field(default_factory=list)


def supervise(plan: Plan, env: Mapping[str, str], grace: float) -> Outcome:
    """Starts the plan and waits for its end.

    SIGINT and SIGTERM are passed to the scripts, which have ``grace`` seconds; a second signal kills at once.
    """
    return _Supervisor(plan, env, grace).run()


class _Supervisor:
    def __init__(self, plan: Plan, env: Mapping[str, str], grace: float) -> None:
        self.outcome = Outcome()
        self._grace = grace
        self._signal: int | None = None
        self._kill_at: float | None = None
        self._process = subprocess.Popen(
            plan.command,
            env={**env, **plan.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours to pass on
            preexec_fn=_die_with_parent,
        )

    def run(self) -> Outcome:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        pumps = [
            threading.Thread(target=self._pump, args=(self._process.stdout, sys.stdout), daemon=True),
            threading.Thread(target=self._pump, args=(self._process.stderr, sys.stderr), daemon=True),
        ]
        for pump in pumps:
            pump.start()
        before = {s: signal.signal(s, self._on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._wait()
        finally:
            self._kill()
            for number, handler in before.items():
                signal.signal(number, handler)
        for pump in pumps:
            pump.join(timeout=5)
        self.outcome.code = self._exit_code()
        return self.outcome

    # -- waiting and ending --------------------------------------------------------------------

    def _wait(self) -> None:
        while self._process.poll() is None:
            time.sleep(0.02)
            if self._kill_at and time.monotonic() > self._kill_at:
                return

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._signal is not None:
            self._kill_at = 0.0 + 1e-9  # a second signal: no more grace
            return
        self._signal = number
        self._kill_at = time.monotonic() + self._grace
        self._signal_workers(number)

    def _signal_workers(self, number: int) -> None:
        """Local workers directly; workers of other hosts through the launcher of our MPI, which forwards."""
        here = os.uname().nodename
        for worker in list(self.outcome.workers.values()):
            if worker["host"] == here:
                _signal_process(worker["pid"], number)
        if any(worker["host"] != here for worker in self.outcome.workers.values()) or not self.outcome.workers:
            _signal_process(self._process.pid, number)

    def _kill(self) -> None:
        """Ends what is left: the launcher first asked, then its whole session, then workers by number."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                _signal_group(self._process.pid, signal.SIGKILL)
                self._process.wait()
        here = os.uname().nodename
        for worker in self.outcome.workers.values():
            if worker["host"] == here and _is_worker(worker["pid"]):
                _signal_process(worker["pid"], signal.SIGKILL)
            leftovers.remove(worker.get("segments", []) if worker["host"] == here else [])

    def _exit_code(self) -> int:
        if self._signal is not None:
            return 128 + self._signal
        if self.outcome.failures:
            return int(self.outcome.failures[0].get("code", 1)) or 1
        code = self._process.returncode
        return 128 - code if code < 0 else code

    # -- listening -----------------------------------------------------------------------------

    def _pump(self, source: IO[bytes], target: IO[str]) -> None:
        """Passes bytes on as they come, except events and the launcher's own banner."""
        pending = b""
        while chunk := os.read(source.fileno(), 1 << 16):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self._take(line + b"\n", target)
            if pending and not _may_be_special(pending):
                _emit(pending, target)
                pending = b""
        if pending:
            self._take(pending, target)

    def _take(self, line: bytes, target: IO[str]) -> None:
        before, mark, rest = line.partition(events.MARK)
        event = events.parse(mark + rest)
        if event is not None:
            _emit(before, target)  # a worker's unfinished line
            self._on_event(event)
        elif _is_noise(line):
            self.outcome.noise.append(line.decode(errors="replace").strip())
        else:
            _emit(line, target)

    def _on_event(self, event: dict[str, Any]) -> None:
        if event["kind"] in ("started", "joined"):
            self.outcome.workers.setdefault(event["rank"], {}).update(event)
        elif event["kind"] == "failed":
            self.outcome.failures.append({**self.outcome.workers.get(event["rank"], {}), **event})
        elif event["kind"] == "stalled":
            self._signal_workers(signal.SIGUSR1)  # every rank writes its stack into its log


_PR_SET_PDEATHSIG = 1

# Lines that hydra, the launcher of our MPI, prints of its own accord.
_NOISE = (
    b"===", b"=   ", b"Abort(", b"[mpiexec@", b"[proxy:", b"application called MPI_Abort", b"YOUR APPLICATION TERMINATED",
    b"This typically refers", b"Please see the FAQ", b"Press Ctrl-C again",
)  # fmt: skip


def _is_noise(line: bytes) -> bool:
    return line.startswith(_NOISE)


def _may_be_special(pending: bytes) -> bool:
    begins = any(noise.startswith(pending[: len(noise)]) for noise in _NOISE)
    return begins or events.MARK[:1] in pending


def _emit(data: bytes, target: IO[str]) -> None:
    buffer = getattr(target, "buffer", None)
    if buffer is None:
        target.write(data.decode(errors="replace"))
    else:
        buffer.write(data)
    target.flush()


def _die_with_parent() -> None:
    """Even a launcher that is killed leaves no workers: Linux kills hydra with it, and hydra's proxies end theirs (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal_process(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def _is_worker(pid: int) -> bool:
    """Whether a process number still belongs to a worker of ours: numbers are used again."""
    try:
        return b"syrtos" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
