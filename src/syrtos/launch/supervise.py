"""Runs a plan to its end: passes output on, listens to the workers, forwards signals, leaves nothing behind."""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import IO, Any

from syrtos.launch import events
from syrtos.launch.noise import is_noise, may_be_noise
from syrtos.launch.outcome import Facts, Outcome, how, judge
from syrtos.launch.plan import Plan
from syrtos.launch.standard_input import copied
from syrtos.settings import INPUT_VARIABLE, SUPERVISED_VARIABLE


def supervise(plan: Plan, env: Mapping[str, str], grace: float, source: int | None = None) -> Outcome:
    """Starts the plan and waits for its end.

    SIGINT and SIGTERM are passed to the scripts, which have ``grace`` seconds; a second signal kills at once.

    Args:
        source: a descriptor that every worker of this machine gets a copy of as its standard input; None: they have nothing to read.
    """
    with copied(source, plan.processes) as told:
        return _Supervisor(plan, {**env, SUPERVISED_VARIABLE: "1", INPUT_VARIABLE: told}, grace).run()


class _Supervisor:
    def __init__(self, plan: Plan, env: Mapping[str, str], grace: float) -> None:
        self._facts = Facts(processes=plan.processes, spared=plan.spared)
        self._grace = grace
        self._kill_at: float | None = None
        self._rules_held: set[IO[str]] = set()
        self._quiet = env.get("TF_CPP_MIN_LOG_LEVEL") != "0"  # 0 asks for all lines
        self._deaths = _Deaths()
        self._machine = events.machine()
        self._process = subprocess.Popen(
            plan.command,
            env={**env, **plan.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours to pass on
            preexec_fn=die_with_parent,
        )

    def run(self) -> Outcome:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        pumps = [
            threading.Thread(target=self._pump, args=(self._process.stdout, sys.stdout), daemon=True),
            threading.Thread(target=self._pump, args=(self._process.stderr, sys.stderr), daemon=True),
        ]
        before = {s: signal.signal(s, self._on_signal) for s in _PASSED_ON}
        for pump in pumps:
            pump.start()
        try:
            self._wait()
        finally:
            self._kill()
            self._deaths.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        for pump in pumps:
            pump.join(timeout=5)
        self._facts.returncode = self._process.returncode
        return judge(self._facts)

    # -- waiting and ending --------------------------------------------------------------------

    def _wait(self) -> None:
        while self._process.poll() is None:
            for worker in self._here():
                self._deaths.watch(worker)
            self._facts.gone += self._deaths.wait(0.02)
            if self._kill_at and time.monotonic() > self._kill_at:
                return

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._facts.stopped_by is not None:
            self._kill_at = time.monotonic()  # a second signal: no more grace
            return
        self._facts.stopped_by = number
        self._kill_at = time.monotonic() + self._grace
        self._signal_workers(number)

    def _signal_workers(self, number: int) -> None:
        """Local workers directly; workers of other hosts through the launcher of our MPI, which forwards."""
        here = self._here()
        for worker in here:
            _signal_worker(worker, number)
        if len(here) < len(self._facts.workers) or not here:
            _signal_process(self._process.pid, number)

    def _here(self) -> list[dict[str, Any]]:
        """The workers that this process can signal. Not by their hosts' names: there may be several on one machine."""
        return [worker for worker in list(self._facts.workers.values()) if worker["machine"] == self._machine]

    def _kill(self) -> None:
        """Ends what is left: the launcher first asked, then its whole session, then workers by number."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                _signal_group(self._process.pid, signal.SIGKILL)
                self._process.wait()
        for worker in self._here():
            _signal_worker(worker, signal.SIGKILL)

    # -- listening -----------------------------------------------------------------------------

    def _pump(self, source: IO[bytes], target: IO[str]) -> None:
        """Passes bytes on as they come, except events and the launcher's own banner."""
        pending = b""
        while chunk := os.read(source.fileno(), 1 << 16):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self._take(line + b"\n", target)
            if pending and not _may_be_special(pending):
                self._release_rule(target)
                _emit(pending, target)
                pending = b""
        if pending:
            self._take(pending, target)
        self._release_rule(target)

    def _take(self, line: bytes, target: IO[str]) -> None:
        before, mark, rest = line.partition(events.MARK)
        event = events.parse(mark + rest)
        if event is not None:
            _emit(before, target)  # a worker's unfinished line
            self._on_event(event)
        elif line == _RULE:
            self._hold_rule(target)
        elif _is_hydras(line) or (_CODES.fullmatch(line) and any("Exit codes: " in said for said in self._facts.noise)):
            self._rules_held.discard(target)
            self._facts.noise.append(line.decode(errors="replace").strip())
        elif not (self._quiet and is_noise(line)):
            self._release_rule(target)
            _emit(line, target)

    def _hold_rule(self, target: IO[str]) -> None:
        """A rule after hydra's lines is hydra's; before them, it is known with the next line."""
        if self._facts.noise:
            return
        self._release_rule(target)
        self._rules_held.add(target)

    def _release_rule(self, target: IO[str]) -> None:
        if target in self._rules_held:
            self._rules_held.discard(target)
            _emit(_RULE, target)

    def _on_event(self, event: dict[str, Any]) -> None:
        if event["kind"] == "started":
            self._facts.workers[event["rank"]] = event
        elif event["kind"] == "failed":
            self._facts.failures.append({**self._facts.workers.get(event["rank"], {}), **event})
        elif event["kind"] == "finished":
            self._facts.finished.add(event["rank"])
        elif event["kind"] == "left":
            self._on_left(event["rank"], event["code"])
        elif event["kind"] == "interrupted":
            self._facts.interrupted.append(event["rank"])
        elif event["kind"] == "lost":
            self._on_lost(event["rank"], event["code"])
        elif event["kind"] == "stalled" and not self._facts.spared:  # there the signal tells MPI of a death
            self._signal_workers(signal.SIGUSR1)  # every rank writes its stack into its log

    def _on_left(self, rank: int, code: int) -> None:
        """MPI's launcher does not notice on another host that a process has ended with code 0: the others would wait for it. They may also
        be about to end alike, and still write what they have."""
        facts = self._facts
        if rank in facts.spared or rank in facts.finished or facts.stopped_by is not None:
            return
        facts.left.setdefault(rank, code)
        self._kill_at = self._kill_at or time.monotonic() + (_LAST_REPORTS if code else self._grace)

    def _on_lost(self, rank: int, status: int) -> None:
        if self._facts.stopped_by is not None or self._kill_at is not None:
            return  # of what the run's end has done to it
        if rank not in self._facts.spared:
            self._facts.fatal = (rank, status)
            self._kill_at = time.monotonic()
            return
        self._facts.lost[rank] = status
        print(
            f"syrtos: rank {rank} {how(status)} before its script had come to its end. Its last batch is lost; the others go on. "
            "Its log may say why.",
            file=sys.stderr,
            flush=True,
        )


class _Deaths:
    """Sees when processes of this machine end, in the order in which they do: a poll by epoll(7) has them in a queue."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._ranks: dict[int, int] = {}  # by descriptor (pidfd_open(2))
        self._known: set[int] = set()
        self._gone: list[int] = []

    def watch(self, worker: Mapping[str, Any]) -> None:
        """From now on; a process that has ended before ends now."""
        if worker["rank"] in self._known:
            return
        self._known.add(worker["rank"])
        try:
            descriptor = os.pidfd_open(worker["pid"])
        except OSError:
            self._gone.append(worker["rank"])
            return
        self._ranks[descriptor] = worker["rank"]
        self._poll.register(descriptor, select.EPOLLIN)
        if not _lives(worker):  # another process has its number by now
            self._end(descriptor)

    def wait(self, seconds: float) -> list[int]:
        """Ranks whose processes have ended, as soon as there are any."""
        for descriptor, _ in self._poll.poll(0 if self._gone else seconds):
            self._end(descriptor)
        gone, self._gone = self._gone, []
        return gone

    def _end(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        os.close(descriptor)
        self._gone.append(self._ranks.pop(descriptor))

    def close(self) -> None:
        """Watches nothing any more."""
        for descriptor in self._ranks:
            os.close(descriptor)
        self._poll.close()


_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # not loaded after a fork: another thread may have held the loader's lock
_LAST_REPORTS = 1.0  # seconds in which other workers may report a failure too
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# What hydra, the launcher of our MPI, prints of its own accord. A rule is a line of this many signs; a script may print one too, so it
# counts only with what hydra writes between two of them.
_RULE = b"=" * 83 + b"\n"
_NOISE = (
    b"=   BAD TERMINATION OF ONE OF YOUR APPLICATION", b"=   PID ", b"=   EXIT CODE: ", b"=   CLEANING UP REMAINING PROCESSES",
    b"=   YOU CAN IGNORE THE BELOW CLEANUP", b"Abort(", b"[mpiexec@", b"[proxy:", b"application called MPI_Abort",
    b"YOUR APPLICATION TERMINATED WITH THE EXIT STRING", b"This typically refers to a problem with your application",
    b"Please see the FAQ page for debugging suggestions", b"Press Ctrl-C again to force abort",
)  # fmt: skip


# A further host's line of hydra's list of exit codes.
_CODES = re.compile(rb"\[\S+\] \d+(,\d+)*\n?")


def _is_hydras(line: bytes) -> bool:
    return line.startswith(_NOISE)


def _may_be_special(pending: bytes) -> bool:
    begins = any(noise.startswith(pending[: len(noise)]) for noise in (_RULE, *_NOISE))
    return begins or may_be_noise(pending) or pending.startswith(b"[") or events.MARK[:1] in pending


def _emit(data: bytes, target: IO[str]) -> None:
    buffer = getattr(target, "buffer", None)
    if buffer is None:
        target.write(data.decode(errors="replace"))
    else:
        buffer.write(data)
    target.flush()


def die_with_parent() -> None:
    """Even a launcher that is killed leaves no workers: Linux kills hydra with it, and hydra's proxies end theirs (prctl(2))."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _lives(worker: Mapping[str, Any]) -> bool:
    return events.born(worker["pid"]) == worker["born"]


def _signal_worker(worker: Mapping[str, Any], number: int) -> None:
    """With its children, if it leads a process group of its own."""
    if _lives(worker):
        (_signal_group if worker.get("group") else _signal_process)(worker["pid"], number)


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
