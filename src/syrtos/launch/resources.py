"""The resources of a worker on its host: threads from the core budget, one GPU by local rank."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
from collections.abc import Mapping

from syrtos import settings
from syrtos.errors import ConfigurationError

# The variables by which a process sees some of its host's GPUs, of NVIDIA and of AMD.
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def apply(env: Mapping[str, str]) -> None:
    """Sets variables that libraries read when they are imported; variables of the user stay.

    Raises:
        ConfigurationError: this host has more workers than GPUs.
    """
    wanted = share(
        env,
        len(os.sched_getaffinity(0)),
        dict(zip(_VARIABLES, (nvidia_gpus(), _amd()), strict=True)),
    )
    settings.set_environment(
        {name: v for name, v in wanted.items() if name not in env or name in _VARIABLES}
    )


def shared_variables(env: Mapping[str, str], workers: int) -> dict[str, str] | None:
    """Returns the variables that all workers of this machine get, beside those of the user.

    Args:
        env: the environment of the workers.
        workers: the number of workers on this machine.

    Returns:
        None where each worker has a GPU of its own.
    """
    gpus: dict[str, int] = dict(zip(_VARIABLES, (nvidia_gpus(), _amd()), strict=True))
    if any(gpus.values()):
        # a framework may set one up when it is imported, and a fork can't use it
        return None
    place = {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": str(workers)}
    wanted = share({**env, **place}, len(os.sched_getaffinity(0)), gpus)
    return {name: value for name, value in wanted.items() if name not in env}


def gpus() -> int:
    """Returns the number of GPUs of this host."""
    return max(nvidia_gpus(), _amd())


def share(env: Mapping[str, str], cores: int, gpus: Mapping[str, int]) -> dict[str, str]:
    """Returns the variables for a worker on a host with these resources.

    Args:
        env: the environment of the worker, in which the process manager or Slurm describes its
            place.
        cores: the number of cores of the host.
        gpus: the number of GPUs of the host, by the variable that chooses among them.

    Raises:
        ConfigurationError: the host has more workers than GPUs.
    """
    local_rank, local_size = _local_rank_and_size(env)
    threads = str(max(cores // local_size, 1))
    wanted = {
        "OMP_NUM_THREADS": threads,
        "TF_NUM_INTRAOP_THREADS": threads,
        # one thread to compute and one to exchange beside it
        "TF_NUM_INTEROP_THREADS": str(max(int(threads), 2)),
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }
    for variable, count in gpus.items():
        named = env.get(variable, ",".join(map(str, range(count)))).split(",")
        # CUDA hides all GPUs from a -1 in the list on
        visible = [
            gpu for gpu in itertools.takewhile(lambda gpu: not gpu.startswith("-"), named) if gpu
        ]
        if visible and local_size > 1 and not _shows_its_own(env):
            wanted[variable] = _one_of(visible, local_rank, local_size, variable)
            if visible[:local_size].count(wanted[variable]) > 1:
                wanted[settings.SHARED_GPU_VARIABLE] = "1"
    return wanted


def _one_of(visible: list[str], local_rank: int, local_size: int, variable: str) -> str:
    if len(visible) < local_size:
        repeated = ",".join((visible * local_size)[:local_size])
        gpus = f"{len(visible)} GPU{'s' * (len(visible) > 1)} ({variable}={','.join(visible)})"
        raise ConfigurationError(
            f"This host has {local_size} workers and {gpus}. Start as many workers as GPUs; or let"
            f" workers share GPUs, by naming them several times: {variable}={repeated}; or use the"
            f" CPU: {variable}="
        )
    return visible[local_rank]


def _shows_its_own(env: Mapping[str, str]) -> bool:
    """Returns whether this worker was given GPUs of its own.

    Slurm gives them (`--gpus-per-task`), or the environment of the worker's task in TF_CONFIG.
    """
    by_slurm = "SLURM_GPUS_PER_TASK" in env or "gpu" in env.get("SLURM_TRES_PER_TASK", "")
    return settings.TASKS_VARIABLE in env or (by_slurm and "MPI_LOCALRANKID" not in env)


def nvidia_gpus() -> int:
    """Returns the number of GPUs of this host that NVIDIA's driver lists."""
    return len(glob.glob("/proc/driver/nvidia/gpus/*"))


def _amd() -> int:
    """Returns the number of the kernel's compute nodes that are GPUs; the id of processors is 0."""
    count = 0
    for path in glob.glob("/sys/class/kfd/kfd/topology/nodes/*/gpu_id"):
        with contextlib.suppress(OSError), open(path) as file:
            count += file.read().strip() not in ("", "0")
    return count


def _local_rank_and_size(env: Mapping[str, str]) -> tuple[int, int]:
    rank = env.get("MPI_LOCALRANKID") or env.get("SLURM_LOCALID") or "0"
    size = env.get("MPI_LOCALNRANKS") or _slurm_tasks(env) or "1"
    return int(rank), int(size)


def _slurm_tasks(env: Mapping[str, str]) -> str:
    """Returns this node's count of tasks, from Slurm's notation for all nodes.

    `2,1(x3)` are four nodes with 2, 1, 1 and 1 tasks.
    """
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    nodes = [tasks for tasks, times in groups for _ in range(int(times or 1))]
    node = int(env.get("SLURM_NODEID", 0))
    return nodes[node] if node < len(nodes) else ""
