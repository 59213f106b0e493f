"""Workers of this machine, which this process starts itself: it sees each of them end, and how."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from typing import Protocol

from syrtos.launch import signalling
from syrtos.launch.deaths import Deaths
from syrtos.launch.engine import Ended, Engine, Outputs
from syrtos.launch.plan import Plan
from syrtos.launch.pmi import ProcessManager

# Seconds that a killed process may take to go: the kernel may write its core, or free much memory.
_LONGEST_KILL = 5.0


class Process(Protocol):
    """A process that has been started, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal."""
        ...


Files = tuple[int, int, int]  # descriptors of standard input, output and error
Start = Callable[[tuple[str, ...], Mapping[str, str], int, Files], Process]


def start(command: tuple[str, ...], env: Mapping[str, str], pmi: int, files: Files) -> Process:
    """A new interpreter, which ends with this process; it leads a session, so that Ctrl-C is ours to pass on."""
    stdin, out, err = files
    return subprocess.Popen(
        command,
        env=env,
        stdin=stdin,
        stdout=out,
        stderr=err,
        pass_fds=[pmi],
        start_new_session=True,
        preexec_fn=signalling.die_with_parent,
    )


class Local(Engine):
    """The workers of a world of this machine, which find each other by PMI."""

    def __init__(self, plan: Plan, env: Mapping[str, str], start: Start) -> None:
        """``start`` starts one of them, with a further descriptor for PMI."""
        self._start_one = start
        self._deaths = Deaths()
        self._manager = ProcessManager(plan.copies, end_all=self._end_aborted)
        self._codes: dict[int, int] = {}
        self._processes: list[Process] = []
        self.outputs: list[Outputs] = []
        try:
            for rank, end in enumerate(self._manager.ends):
                self._processes.append(self._start(plan, env, rank, end.fileno()))
                self._deaths.watch(rank, self._processes[rank].pid)
            self._manager.start()
        except BaseException:
            self.kill()
            raise
        finally:
            for end in self._manager.ends:
                end.close()

    def _start(self, plan: Plan, env: Mapping[str, str], rank: int, pmi: int) -> Process:
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            variables = {**env, **self._manager.environment(rank, pmi)}
            return self._start_one(plan.command, variables, pmi, (nothing, out_end, err_end))
        finally:
            for descriptor in (nothing, out_end, err_end):
                os.close(descriptor)
            self.outputs.append(Outputs(os.fdopen(out, "rb"), os.fdopen(err, "rb")))

    def wait(self, seconds: float) -> list[Ended]:
        """Those with their exit codes: of MPI_Abort, if they have called it."""
        ended: list[Ended] = []
        for rank in self._deaths.wait(seconds):
            code = self._processes[rank].wait()
            if code:
                signalling.to_group(self._processes[rank].pid, signal.SIGKILL)  # its children
            self._codes[rank] = self._manager.aborted.get(rank, code)
            ended.append(Ended(rank, self._codes[rank]))
        return ended

    def poll(self) -> int | None:
        if len(self._codes) < len(self._processes):
            return None
        return next((code for code in self._codes.values() if code), 0)

    def signal(self, number: int) -> None:
        for rank, process in enumerate(self._processes):
            if rank not in self._codes:
                signalling.to_process(process.pid, number)

    def kill(self) -> None:
        left = {rank: process for rank, process in enumerate(self._processes) if rank not in self._codes}
        for process in left.values():
            signalling.to_group(process.pid, signal.SIGKILL)
            signalling.to_process(process.pid, signal.SIGKILL)  # it may lead no group yet
        for rank, process in left.items():
            try:
                self._codes[rank] = process.wait(_LONGEST_KILL)
            except (subprocess.TimeoutExpired, TimeoutError):  # the kernel does not let it go yet
                self._codes[rank] = -signal.SIGKILL
        self._deaths.close()

    def _end_aborted(self) -> None:
        """MPI leaves it to us to end a process that has called MPI_Abort."""
        for rank in self._manager.aborted.keys() - self._codes:
            signalling.to_process(self._processes[rank].pid, signal.SIGKILL)
