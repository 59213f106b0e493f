"""An engine for workers of this machine: this process starts them, and sees each end, and how."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from syrtos.launch import lost_workers
from syrtos.launch.plan import Group
from syrtos.launch.process_engine import Outputs, ProcessEnd, ProcessEngine, Vitals, read_vitals
from syrtos.launch.processes import leftovers, pmi, signalling
from syrtos.launch.processes.deaths import Deaths
from syrtos.settings import options_from

# Seconds that a killed process may take to go: the kernel may write its core, or free much memory.
_LONGEST_KILL = 5.0
# Seconds in which the parent of a worker that has ended must say how.
_LONGEST_REPORT = 1.0


class Process(Protocol):
    """A process that has been started, with the interface of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """The number of the process."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the process and returns its exit code, negative for a signal."""
        ...


Files = tuple[int, int, int]  # descriptors of standard input, output and error
Start = Callable[[tuple[str, ...], Mapping[str, str], int, Files], Process]


def start(command: tuple[str, ...], env: Mapping[str, str], pmi: int, files: Files) -> Process:
    """Starts a new interpreter, which ends with this process."""
    # It leads a session, so that Ctrl-C is ours to pass on.
    stdin, out, err = files
    return subprocess.Popen(
        command,
        env=env,
        stdin=stdin,
        stdout=out,
        stderr=err,
        pass_fds=[pmi],
        start_new_session=True,
        preexec_fn=signalling.death_with_parent(),
    )


class Local(ProcessEngine):
    """An engine for the workers of a world that are on this machine.

    They find each other, and those of other hosts, by PMI.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        nodes: Sequence[int],
        env: Mapping[str, str],
        start: Start,
        on_line: Callable[[int, str], None] | None = None,
        whole: bool = False,
    ) -> None:
        """Starts the workers; they end with the thread that calls this.

        Args:
            groups: the commands, and the ranks of each.
            nodes: the number of each rank's host, of all ranks of the world.
            env: the environment of the workers.
            start: starts one of them, with a further descriptor for PMI.
            on_line: gets their messages of PMI, to be answered by `tell`; None: they are the whole
                world, and are answered here.
            whole: whether signals are for all processes of a worker's group.
        """
        self._start_one, self._nodes, self._env = start, nodes, env
        self._signal_one = signalling.to_group if whole else signalling.to_process
        self._answers = pmi.KeyValues(nodes)
        # the name of the store of the world, once a worker has asked for it
        self._store = ""
        self._pass_on = on_line or self._answer
        self._aborted: dict[int, int] = {}
        self._deaths = Deaths()
        self._codes: dict[int, int | None] = {}
        self._processes: dict[int, Process] = {}
        self.outputs: dict[int, Outputs] = {}
        self._sockets = pmi.Sockets(
            [rank for group in groups for rank in group.ranks], self._on_line
        )
        try:
            for rank, command in (
                (rank, group.command) for group in groups for rank in group.ranks
            ):
                self._processes[rank] = self._start(command, rank)
                self._deaths.watch(rank, self._processes[rank].pid)
            self._sockets.start()
        except BaseException:
            self.kill()
            raise
        finally:
            # The workers have inherited their ends. An end that stays open here hides that a worker
            # is gone.
            for end in self._sockets.ends.values():
                end.close()

    def _start(self, command: tuple[str, ...], rank: int) -> Process:
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        # A worker opens its standard input itself: see `standard_input.adopt`.
        nothing = os.open(os.devnull, os.O_RDONLY)
        descriptor = self._sockets.ends[rank].fileno()
        try:
            variables = {**self._env, **pmi.environment(rank, self._nodes, descriptor)}
            return self._start_one(command, variables, descriptor, (nothing, out_end, err_end))
        finally:
            for end in (nothing, out_end, err_end):
                os.close(end)
            self.outputs[rank] = Outputs(os.fdopen(out, "rb"), os.fdopen(err, "rb"))

    # -- PMI -------------------------------------------------------------------------------------

    def tell(self, rank: int, text: str) -> None:
        """Answers a worker's message of PMI."""
        self._store = pmi.words(text).get("kvsname", self._store)
        self._sockets.tell(rank, text)

    def _on_line(self, rank: int, line: str) -> None:
        asked = pmi.words(line)
        if asked.get("cmd") == "abort":
            self._abort(rank, int(asked.get("exitcode", "1")))
        else:
            self._pass_on(rank, line)

    def _answer(self, rank: int, line: str) -> None:
        for each, text in self._answers.answer(rank, line):
            self.tell(each, text)

    def _abort(self, rank: int, code: int) -> None:
        """Ends a worker that has called MPI_Abort."""
        # MPI leaves it to us, for it may wait for threads of its own in C's exit handlers.
        # MPI_Abort is never a success, whatever code it is given.
        self._aborted[rank] = code & 0xFF or 1
        signalling.to_process(self._processes[rank].pid, signal.SIGKILL)

    # -- the processes ---------------------------------------------------------------------------

    def wait(self, seconds: float) -> list[ProcessEnd]:
        """Waits at most ``seconds`` for processes that end, and returns them with their exit codes.

        The code of a worker that has called MPI_Abort is the one that it gave there.
        """
        gone = self._deaths.wait(seconds)
        deadline = time.monotonic() + _LONGEST_REPORT
        return [self._note_end(rank, deadline) for rank in gone]

    def _note_end(self, rank: int, deadline: float) -> ProcessEnd:
        """Notes how a worker's process has ended; it is not known if no one says so in time."""
        process, code = self._processes[rank], None
        with contextlib.suppress(subprocess.TimeoutExpired, TimeoutError):
            code = process.wait(max(deadline - time.monotonic(), 0.001))
        if code != 0:
            # the children that a failed worker leaves behind are in its process group
            signalling.to_group(process.pid, signal.SIGKILL)
        self._codes[rank] = self._aborted.get(rank, code)
        return ProcessEnd(rank, self._codes[rank])

    def runs(self) -> bool:
        return len(self._codes) < len(self._processes)

    def signal(self, number: int) -> None:
        for rank in self._running_ranks():
            self._signal_one(self._processes[rank].pid, number)

    def kill(self) -> None:
        left = self._running_ranks()
        for rank in left:
            signalling.to_group(self._processes[rank].pid, signal.SIGKILL)
            # it may lead no group yet
            signalling.to_process(self._processes[rank].pid, signal.SIGKILL)
        deadline = time.monotonic() + _LONGEST_KILL
        while self.runs() and (seconds := deadline - time.monotonic()) > 0:
            self.wait(seconds)
        # the kernel does not let these go yet
        self._codes |= dict.fromkeys(self._running_ranks(), -signal.SIGKILL)
        self._deaths.close()
        if self._store:
            leftovers.remove_of_world(self._store)

    def vitals(self, rank: int) -> Vitals | None:
        process = self._processes.get(rank)
        return read_vitals(process.pid) if process is not None and rank not in self._codes else None

    def note_death(self, rank: int) -> None:
        lost_workers.note(options_from(self._env).run_dir, rank)

    def _running_ranks(self) -> list[int]:
        return [rank for rank in self._processes if rank not in self._codes]
