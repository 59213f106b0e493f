"""A job's workers by generation: their commands, the pipes they read, the output they write."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

from syrtos import settings
from syrtos.launch.outcome import Outcome
from syrtos.launch.remote.agents import Agents
from syrtos.launch.supervise import supervise
from syrtos.observe import steady
from syrtos.observe.ledger import launching
from syrtos.run_dir import RunDir
from syrtos_jobs.observation import logs
from syrtos_jobs.requests.request import Job
from syrtos_jobs.runner import job_command, preparation, processes
from syrtos_jobs.runner.reserved_nodes import ReservedNodes
from syrtos_jobs.storage import channels
from syrtos_jobs.storage.storage_uris import StorageURIs

# Variables that say what this machine has.
_OF_MACHINES = ("CUDA_VISIBLE", "HIP_VISIBLE", "ROCR_VISIBLE", "NVIDIA_VISIBLE", "TMPDIR")
_GRACE = 120.0  # SageMaker's, from SIGTERM to SIGKILL

Take = Callable[[list[str]], None]


class Workers:
    """The workers of one attempt at a job.

    Args:
        job: the job as it was requested.
        folders: the folders of its instances.
        places: the places that its channels come from.
        python: the interpreter of its scripts.
        variables: the environment of all its processes; the mark in it finds those that a script
            leaves behind.
        credentials: environment variables with which a script reaches the service.
        gpus: GPUs of each instance.
        reserved: the nodes of the instances, and their agents; None: the instances are on this
            machine.
        takers: for each instance, the function that gets the lines of its output.

    Attributes:
        running: whether there are any workers.
    """

    def __init__(
        self,
        job: Job,
        folders: job_command.Folders,
        places: StorageURIs,
        python: Path,
        variables: Mapping[str, str],
        credentials: Mapping[str, str],
        takers: Sequence[Take],
        gpus: int,
        reserved: ReservedNodes | None,
    ) -> None:
        self._job, self._folders, self._places, self._python = job, folders, places, python
        self._variables, self._credentials, self._takers = variables, credentials, takers
        self._gpus, self._reserved = gpus, reserved
        self._pipes: list[channels.Pipe] = []
        self.running = False

    @property
    def channel_error(self) -> Exception | None:
        """The error that kept a channel from being streamed to its end; None if there is none."""
        return next((pipe.error for pipe in self._pipes if pipe.error), None)

    def run(self, folder: Path, variables: Mapping[str, str]) -> Outcome:
        """Trains with a generation of workers, recorded in ``folder``.

        ``variables`` are added to the environment of the workers.
        """
        RunDir(folder).logs.mkdir(parents=True, exist_ok=True)
        variables, reserved = {**self._variables, **variables}, self._reserved
        if reserved:
            # a node has its own
            variables = {
                name: value
                for name, value in variables.items()
                if not name.startswith(_OF_MACHINES)
            }
            self._folders = reserved.await_nodes(self._job, self._folders)
            # a node that takes another's place has another address
            preparation.write_contract(self._job, self._folders, self._gpus)
        reach = reserved.command if reserved else ""
        plan = job_command.make_plan(
            self._job,
            self._folders,
            folder,
            self._python,
            settings.environment(),
            self._credentials,
            self._gpus,
            reach,
        )
        if reserved:
            plan = dataclasses.replace(plan, forward=tuple(variables))
            # what the command needs that reaches the nodes is nothing that scripts need there
            on_the_way = {**variables, **reserved.variables, "PATH": plan.environment["PATH"]}
            reserved.start_agents(plan.agents, on_the_way)
        self._pipes = self._open_pipes()
        tail = logs.LogTail(self._outputs(folder))
        self.running = True
        try:
            with (
                launching(folder, began=steady.now()) as facts,
                self._agents(bool(plan.agents)) as agents,
            ):
                outcome = supervise(plan, variables, _GRACE, agents=agents)
                facts |= outcome.facts()
                return outcome
        finally:
            self.running = False
            # before the pipes: a script that reads one would wait for more
            if not self._reserved:
                processes.end(self._variables[processes.MARK])
            for pipe in self._pipes:
                pipe.close()
            # last of all, to read what they have written
            tail.close()

    def _agents(self, are_needed: bool) -> AbstractContextManager[Agents | None]:
        """Returns a context with the agents of a generation.

        The agents of this machine end with the context, those of nodes stay.
        """
        if self._reserved:
            return nullcontext(self._reserved.agents)
        return closing(Agents()) if are_needed else nullcontext()

    def _open_pipes(self) -> list[channels.Pipe]:
        hosts = len(self._job.hosts)
        found = []
        for host in range(hosts):
            folder = self._folders.ml(host) / "input" / "data"
            for channel in (c for c in self._job.channels if c.mode == "Pipe"):
                found.append(channels.Pipe(self._places, channel, host, hosts, folder))
        return found

    def _outputs(self, run_dir: Path) -> list[tuple[Path, Take]]:
        """Returns the files that processes write output to, with the functions that get it."""
        found = []
        for host, take in enumerate(self._takers):
            if self._job.distribution.kind == "copies":
                found.append((RunDir(run_dir).logs / f"{self._job.hosts[host]}.log", take))
                continue
            per_host = self._job.distribution.per_host
            ranks = range(host * per_host, (host + 1) * per_host)
            found += [(RunDir(run_dir).log(rank), take) for rank in ranks]
        return found
