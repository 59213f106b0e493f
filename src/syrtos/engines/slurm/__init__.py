"""Slurm: inside of an allocation its nodes are reached by `srun`; from elsewhere a batch job is submitted."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from syrtos.engines.engine import STOPPED, Engine, Reached, RunState, Submitted, Wanted, growing, read_end
from syrtos.engines.slurm import allocation, batch
from syrtos.errors import ConfigurationError, LaunchError
from syrtos.settings import environment

_SCRIPT = "slurm.sh"
# Seconds between two questions about a job: Slurm's controller serves many.
_EVERY = 3.0
# The end of a job by Slurm's word for its state (squeue(1), "JOB STATE CODES"), with what to do.
_FAILED = {
    "BOOT_FAIL": "its nodes did not start.",
    "DEADLINE": "its deadline has passed.",
    "NODE_FAIL": "a node was lost. The same command with this run directory goes on from the last snapshot.",
    "OUT_OF_MEMORY": "it has used more memory than it asked for: ask for more (`--with mem=16G`).",
    "TIMEOUT": "its time is over: ask for more (`--with time=4:00:00`). The same command with this run directory goes on from the last snapshot.",
}
# Reasons for which a job never starts (squeue(1), "JOB REASON CODES"), with what to do.
_NEVER = {
    "PartitionNodeLimit": "the partition has fewer nodes than it asks for: `sinfo` lists them.",
    "PartitionTimeLimit": "it asks for more time than the partition allows: `--with time=...`.",
    "PartitionDown": "the partition is down.",
    "BadConstraints": "no node has what it asks for.",
    "QOSMaxJobsPerUserLimit": "the limit of jobs of this user is reached.",
    "AssocGrpCPULimit": "the limit of processors of this account is reached.",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved.",
}


class Slurm(Engine):
    """Runs in jobs of Slurm 22.05 and later."""

    name = "slurm"
    settings = batch.SETTINGS

    def reach(self, wanted: Wanted) -> AbstractContextManager[Reached] | None:
        found = allocation.hosts_of(environment(), wanted.workers)
        if found is None:
            return None
        here = allocation.is_one_node_here(found)
        return contextlib.nullcontext(Reached(found, "" if here else allocation.SRUN))

    def files(self, wanted: Wanted) -> dict[str, str]:
        return {_SCRIPT: batch.script(wanted)}

    def submit(self, wanted: Wanted) -> dict[str, str]:
        wanted.run_dir.mkdir(parents=True, exist_ok=True)
        path = wanted.run_dir / _SCRIPT
        path.write_text(self.files(wanted)[_SCRIPT])
        done = _run_command(["sbatch", "--parsable", str(path)], wanted.folder)
        if done.returncode:
            said = done.stderr.strip().removeprefix("sbatch: error: ").replace("\nsbatch: error: ", " ")
            raise LaunchError(f"Slurm refuses the job: {said} ({path} is what was submitted.)")
        return {"job": done.stdout.strip().partition(";")[0], "run_dir": str(wanted.run_dir)}

    def submitted_run(self, facts: Mapping[str, str]) -> Submitted:
        return _Job(facts["job"], Path(facts["run_dir"]))


class _Job(Submitted):
    """A batch job, by its number."""

    def __init__(self, number: str, run_dir: Path) -> None:
        self._number, self._run_dir = number, run_dir
        self._state = RunState("waiting")
        self._asked: float | None = None

    def state(self) -> RunState:
        if self._asked is None or time.monotonic() - self._asked > _EVERY:
            self._state, self._asked = self._look(), time.monotonic()
        return self._state

    def _look(self) -> RunState:
        facts = self._facts()
        # Slurm's controller does not answer for a moment: the state is the one that is known.
        if facts is None:
            return self._state
        word, reason = facts.get("JobState", ""), facts.get("Reason", "None")
        if word in ("RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED"):
            return RunState("running")
        if word in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESIZING"):
            why = _NEVER.get(reason, "")
            told = "" if reason in ("None", "") else f"job {self._number} waits: {reason}"
            return RunState("waiting", f"{told}: {why}" if why else told)
        if word == "COMPLETED":
            return RunState("finished", code=0)
        code = int(facts.get("ExitCode", "1:0").partition(":")[0]) or 1
        if word in ("CANCELLED", "PREEMPTED"):
            return RunState("stopped", f"job {self._number} was cancelled.", code)
        if code == STOPPED:
            return RunState(
                "stopped", f"its state is saved: the same command with --run-dir {self._run_dir} goes on from it.", code
            )
        if word in _FAILED:
            return RunState("failed", f"job {self._number}: {_FAILED[word]}", code)
        if word:
            return RunState("failed", f"job {self._number} ended with exit code {code}.", code)
        if ended := read_end(self._run_dir):
            return ended
        return RunState("failed", f"Slurm knows nothing of job {self._number} any more: {self._log()} is its output.")

    def _facts(self) -> dict[str, str] | None:
        """Returns what Slurm keeps of the job until some minutes after its end (scontrol(1), MinJobAge of slurm.conf(5)).

        None if Slurm does not answer; empty if it does not know the job any more.
        """
        done = _run_command(["scontrol", "show", "job", "--oneliner", self._number])
        if done.returncode:
            return {} if "Invalid job id" in done.stderr else None
        return dict(re.findall(r"(\w+)=(\S*)", done.stdout.splitlines()[0]))

    def output(self, follow: bool) -> Iterator[bytes]:
        return growing(self._log(), self, follow)

    def _log(self) -> Path:
        return self._run_dir / f"slurm-{self._number}.log"

    def stop(self, at_once: bool = False) -> None:
        # The batch script alone passes the signal on to the launcher, so that agents are there until the state is
        # saved.
        soft = not at_once and self._look().phase == "running"
        _run_command(["scancel", *(["--batch", "--signal=TERM"] if soft else []), self._number])


def _run_command(command: list[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command of Slurm.

    Raises:
        ConfigurationError: this machine has no Slurm.
    """
    try:
        # Variables of an allocation around this one would count as options of the new job (sbatch(1), "INPUT
        # ENVIRONMENT VARIABLES").
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_JOB")}
        return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, check=False)
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"`--on slurm` needs Slurm's command `{command[0]}`, which this machine does not have. Give the command on a login node."
        ) from error


ENGINE = Slurm()
