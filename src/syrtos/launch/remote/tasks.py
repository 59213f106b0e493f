"""Environments of the workers of a TF_CONFIG cluster: each gets that of its own task's process.

All workers of a host are started from one process, with one environment. Tasks of one host may
differ in theirs, by ``CUDA_VISIBLE_DEVICES`` above all; so each worker takes over its own task's
from /proc, and starts again with it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from syrtos.errors import ConfigurationError
from syrtos.launch import events
from syrtos.settings import TASKS_VARIABLE

# Variables by which launchers address workers.
_PROTOCOL = ("PMI", "MPI", "HYD", "SYRTOS_")
Process = dict[str, int | str]


def this_process() -> Process:
    """Returns what identifies this process as a task: its machine, number and birth."""
    pid = os.getpid()
    return {"machine": events.machine(), "pid": pid, "born": events.born(pid)}


def task_variables(processes: Mapping[int, Process]) -> dict[str, str]:
    """Returns the variable that tells workers of their tasks, by rank."""
    return {TASKS_VARIABLE: json.dumps(processes)}


def adopt(env: Mapping[str, str], rank: int) -> None:
    """Starts this worker again, in the environment of its task; does nothing without tasks.

    Raises:
        ConfigurationError: the task's process is in another container, or belongs to another user.
    """
    processes = json.loads(env.get(TASKS_VARIABLE) or "{}")
    process = processes.get(str(rank))
    if process is None:
        return
    protocol = {
        name: value
        for name, value in env.items()
        if name.startswith(_PROTOCOL) and name != TASKS_VARIABLE
    }
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(
        sys.executable,
        command,
        {**_environment_of(process, rank), **protocol, TASKS_VARIABLE: "{}"},
    )


def _environment_of(process: Process, rank: int) -> dict[str, str]:
    pid = int(process["pid"])
    try:
        if (process["machine"], process["born"]) != (events.machine(), events.born(pid)):
            raise ConfigurationError(
                f"The task of rank {rank} runs in another container than the first task of its host"
                " in TF_CONFIG, which starts its worker. Give each container an address of its own"
                " in TF_CONFIG."
            )
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"The environment of rank {rank}'s task can't be read: {error}. Start all tasks of a"
            " host as one user."
        ) from error
    pairs = (os.fsdecode(part).partition("=") for part in data.split(b"\0") if b"=" in part)
    return {name: value for name, _, value in pairs}
