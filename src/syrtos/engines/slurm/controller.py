"""Slurm's commands, and what its controller says of a job."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from syrtos.errors import ConfigurationError
from syrtos.settings import environment

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


def facts_of(job: str) -> dict[str, str]:
    """Returns what Slurm keeps of a job; empty if it does not answer or no longer knows the job."""
    try:
        return (tasks_of(job) or [{}])[0]
    except UnansweredError:
        return {}


class UnansweredError(ConfigurationError):
    """Slurm's controller has not answered."""


def tasks_of(job: str) -> list[dict[str, str]]:
    """Returns what Slurm keeps of a job (scontrol(1)) until some minutes after its end.

    The minutes are MinJobAge of slurm.conf(5). There are several tasks where it is an array, and
    none if Slurm does not know the job any more.

    Raises:
        UnansweredError: the controller does not answer.
        ConfigurationError: this machine has no Slurm.
    """
    done = run_command(["scontrol", "show", "job", "--oneliner", job])
    if done.returncode and "Invalid job id" not in done.stderr:
        raise UnansweredError(
            f"`scontrol show job {job}` says: {_last_line(done.stderr)} Ask again on a host of the"
            " cluster once `squeue` answers there."
        )
    if done.returncode:
        return []
    return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in done.stdout.splitlines() if line]


def cancel(*words: str) -> None:
    """Cancels a job, or sends it a signal: ``words`` are those of scancel(1).

    Raises:
        UnansweredError: the controller does not answer, or refuses.
        ConfigurationError: this machine has no Slurm.
    """
    done = run_command(["scancel", *words])
    # One that ends meanwhile is ended.
    if done.returncode and not re.search("already complet|Invalid job id", done.stderr):
        raise UnansweredError(
            f"No signal was sent: `scancel {' '.join(words)}` says: {_last_line(done.stderr)}"
        )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines() or ["nothing"]
    return lines[-1].rstrip(".") + "."


def why_waiting(job: str, reason: str) -> str:
    """Returns why a job waits, by Slurm's word for it, with what to do; empty if there is none."""
    if reason in ("None", ""):
        return ""
    why = _NEVER.get(reason, "")
    return f"job {job} waits: {reason}" + (f": {why}" if why else "")


def without_allocation() -> dict[str, str]:
    """Returns the environment without the variables of an allocation around this process."""
    # They would count as options of a new job (sbatch(1), "INPUT ENVIRONMENT VARIABLES").
    return {
        name: value for name, value in environment().items() if not name.startswith("SLURM_JOB")
    }


def missing_command(command: str) -> ConfigurationError:
    """Returns the error of a machine that has no such command of Slurm."""
    return ConfigurationError(
        f"`--on slurm` needs Slurm's command `{command}`, which this machine does not have. Give"
        " the command on a login node."
    )


def run_command(command: list[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command of Slurm.

    Raises:
        ConfigurationError: this machine has no Slurm.
    """
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=folder,
            env=without_allocation(),
            check=False,
        )
    except FileNotFoundError as error:
        raise missing_command(command[0]) from error
