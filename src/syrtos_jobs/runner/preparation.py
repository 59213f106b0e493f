"""The files of a job's instances before it trains: configuration, data, code and packages."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from syrtos import settings
from syrtos_jobs.requests.request import Job
from syrtos_jobs.runner import contract, job_command, programs
from syrtos_jobs.runner.job_command import Folders
from syrtos_jobs.storage import channels
from syrtos_jobs.storage.storage_uris import StorageURIs


def write_contract(job: Job, folders: Folders, gpus: int) -> None:
    """Writes ``/etc/hosts`` and the configuration files of instances with ``gpus`` GPUs each."""
    job_command.write_hosts_file(job, folders)
    for host in range(len(job.hosts)):
        place = folders.instance_facts(job, host, gpus)
        for name, facts in contract.files(job, host, place).items():
            (folders.ml(host) / "input" / "config" / name).write_text(json.dumps(facts))


def fill_channels(
    job: Job, folders: Folders, places: StorageURIs, is_over: Callable[[], bool]
) -> None:
    """Provides the data of each instance, until ``is_over`` returns True.

    Raises:
        DataError: there is none, or it can't be read.
    """
    hosts = len(job.hosts)
    for host in range(hosts):
        for channel in job.channels:
            if is_over():
                return
            if channel.mode == "Pipe":
                # raises if there are none: better now than in the middle of an epoch
                channels.sources(places, channel, host, hosts)
                continue
            folder = folders.ml(host) / "input" / "data" / channel.name
            channels.clean(folder)
            channels.provide(places, channel, host, hosts, folder)


def fetch_program(
    job: Job,
    folders: Folders,
    places: StorageURIs,
    say: Callable[[list[str]], None],
    variables: Mapping[str, str],
) -> Path:
    """Unpacks the job's code on each instance, and returns the interpreter for it.

    The interpreter has the packages that the code requires.

    Args:
        say: gets the output of pip.
        variables: the environment of the job's processes.

    Raises:
        DataError: the code can't be read.
        LaunchError: it does not hold the script, or pip has failed.
    """
    code = [folders.code(job, host) for host in range(len(job.hosts))]
    if job.program:
        for folder in code:
            if job.program.source:
                channels.clean(folder)
            programs.fetch(places, job.program, folder)
    env = {**variables, "PATH": settings.environment().get("PATH", os.defpath)}
    return programs.python_for(job.program, code[0], folders.job / "python", say, env)
