"""The file ``run.json`` in an attempt's run directory, with the job's command and versions."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Required, TypedDict

from syrtos.run_dir import RunDir
from syrtos_jobs.requests.request import Job
from syrtos_jobs.store.home import write as write_file

_NAME = "run.json"


class ProgramFacts(TypedDict, total=False):
    """A job's script, and the arguments of its command line."""

    name: str
    arguments: list[str]


class WorkerFacts(TypedDict):
    """The numbers of a job's workers."""

    workers: int
    workers_per_instance: int


class RunFacts(WorkerFacts, total=False):
    """``run.json``, as far as an attempt, or a request alone, can tell."""

    program: Required[ProgramFacts]
    command: Required[list[str]]
    folder: str
    source: str
    versions: dict[str, str]
    started: str


def describe_program(job: Job) -> RunFacts:
    """Returns a job's program, its command line, and its numbers of workers.

    The command line has the form of SageMaker's toolkits.

    Args:
        job: read from a request without secrets.
    """
    program = job.program
    facts: WorkerFacts = {"workers": job.slots, "workers_per_instance": job.distribution.per_host}
    if program is None:
        name = next((word for word in job.command if word.endswith((".py", ".sh"))), job.command[0])
        return {**facts, "program": {"name": PurePosixPath(name).name}, "command": [*job.command]}
    starts = ["python", program.entry] if program.is_python else [f"./{program.entry}"]
    return {
        **facts,
        "program": {"name": program.entry, "arguments": [*program.arguments]},
        "command": [*starts, *program.arguments],
        "folder": program.folder,
        "source": program.source,
    }


def write(folder: Path, job: Job, versions: Mapping[str, str]) -> None:
    """Writes the facts about an attempt into its run directory, before it trains."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        **describe_program(job),
        "versions": dict(versions),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    write_file(folder / _NAME, json.dumps(facts, indent=2) + "\n")


def read(job_folder: Path) -> dict[str, Any]:
    """Returns the facts about the last attempt of a job that has left any; empty if none has."""
    for attempt in reversed(attempts(job_folder)):
        try:
            found = json.loads((attempt / _NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        return found if isinstance(found, dict) else {}
    return {}


def attempts(job_folder: Path) -> list[Path]:
    """Returns the run directories of a job's attempts, in order."""
    return sorted(job_folder.glob("attempt-*"), key=lambda path: int(path.name.rpartition("-")[2]))


def folders(job_folder: Path) -> list[Path]:
    """Returns the run directories of all generations of all attempts, in order."""
    return [folder for attempt in attempts(job_folder) for folder in RunDir(attempt).generations()]
