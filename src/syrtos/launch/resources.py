"""The resources of a worker on its host: threads from the core budget, one GPU by local rank."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from syrtos import settings

_GPUS = "CUDA_VISIBLE_DEVICES"


def apply(env: Mapping[str, str]) -> None:
    """Sets variables that libraries read when they are imported; variables of the user stay."""
    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    wanted = share(env, cores=len(os.sched_getaffinity(0)), gpus=gpus)
    settings.set_environment({name: value for name, value in wanted.items() if name not in env or name == _GPUS})


def share(env: Mapping[str, str], cores: int, gpus: int) -> dict[str, str]:
    """The variables for the worker described by ``env`` (hydra's or Slurm's) on a host with these resources."""
    local_rank, local_size = _place(env)
    threads = str(max(cores // local_size, 1))
    wanted = {
        "OMP_NUM_THREADS": threads,
        "TF_NUM_INTRAOP_THREADS": threads,
        # one thread to compute and one to exchange beside it
        "TF_NUM_INTEROP_THREADS": str(max(int(threads), 2)),
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }
    visible = [gpu for gpu in env.get(_GPUS, ",".join(map(str, range(gpus)))).split(",") if gpu]
    if visible and local_size > 1:
        wanted[_GPUS] = visible[local_rank % len(visible)]
    return wanted


def _place(env: Mapping[str, str]) -> tuple[int, int]:
    rank = env.get("MPI_LOCALRANKID") or env.get("SLURM_LOCALID") or "0"
    size = env.get("MPI_LOCALNRANKS") or _slurm_tasks(env) or "1"
    return int(rank), int(size)


def _slurm_tasks(env: Mapping[str, str]) -> str:
    """This node's count in Slurm's notation for all nodes: `2,1(x3)` are four nodes with 2, 1, 1 and 1 tasks."""
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    nodes = [tasks for tasks, times in groups for _ in range(int(times or 1))]
    node = int(env.get("SLURM_NODEID", 0))
    return nodes[node] if node < len(nodes) else ""
