"""Workers that hydra starts, the `mpiexec` of our MPI: on other hosts, or where some may die and the others go on."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from typing import Any

from syrtos.launch import events, signalling
from syrtos.launch.deaths import Deaths
from syrtos.launch.engine import Ended, Engine, Outputs
from syrtos.launch.plan import Plan


class Hydra(Engine):
    """A launcher and its workers, of which it says little: which of them has ended first is told by its messages."""

    def __init__(self, plan: Plan, env: Mapping[str, str], workers: Mapping[int, Mapping[str, Any]]) -> None:
        """``workers`` holds what each has said of its process, once it has."""
        self._workers = workers
        self._machine = events.machine()
        self._deaths = Deaths()
        self._process = subprocess.Popen(
            plan.command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours to pass on
            preexec_fn=signalling.die_with_parent,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.outputs = [Outputs(self._process.stdout, self._process.stderr)]

    def wait(self, seconds: float) -> list[Ended]:
        """Of this machine's workers, by their numbers; not their exit codes."""
        for worker in self._here():
            self._deaths.watch(worker["rank"], worker["pid"], worker["born"])
        return [Ended(rank) for rank in self._deaths.wait(seconds)]

    def poll(self) -> int | None:
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Local workers directly; workers of other hosts through the launcher, which forwards."""
        here = self._here()
        for worker in here:
            signalling.to_worker(worker, number)
        if len(here) < len(self._workers) or not here:
            signalling.to_process(self._process.pid, number)

    def kill(self) -> None:
        """The launcher is asked first, then its whole session ends, then workers by number."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                signalling.to_group(self._process.pid, signal.SIGKILL)
                self._process.wait()
        for worker in self._here():
            signalling.to_worker(worker, signal.SIGKILL)
        self._deaths.close()

    def _here(self) -> list[Mapping[str, Any]]:
        """The workers that this process can signal. Not by their hosts' names: there may be several on one machine."""
        return [worker for worker in list(self._workers.values()) if worker["machine"] == self._machine]
