"""The nodes of the Slurm allocation around this process."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

from syrtos.errors import ConfigurationError, LaunchError
from syrtos.launch.remote.here import is_here
from syrtos.launch.spec import Host

# How an agent is started on a node: without what the job asks for each of its tasks, since its step
# has all GPUs of the node. `srun` passes on whole lines only, unless --unbuffered; an agent's
# messages are none. With --overlap the step shares the nodes with that of the batch script, and
# without --exact it has all that the job has there.
SRUN = (
    "env -u SLURM_GPUS_PER_TASK -u SLURM_TRES_PER_TASK -u SLURM_EXACT srun --unbuffered --overlap"
    " --mpi=none --nodes=1 --ntasks=1 --kill-on-bad-exit=0 --wait=0 --quiet --export=ALL -w"
)


def hosts_of(env: Mapping[str, str], workers: int | None) -> tuple[Host, ...] | None:
    """Returns the nodes of the allocation and the workers on each; None outside of an allocation.

    A node has a worker for each of its tasks where the job asks for tasks, else for each of its
    GPUs, else one. More workers than that are spread over the nodes, as far as their processors go.

    Args:
        env: the environment (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES").
        workers: the number of workers that was asked for.

    Raises:
        ConfigurationError: the nodes have fewer processors than workers were asked for.
        LaunchError: `scontrol` does not say which nodes these are.
    """
    nodes = env.get("SLURM_JOB_NODELIST")
    if not nodes or not env.get("SLURM_JOB_ID"):
        return None
    names = names_of(nodes)
    cpus = _expand_counts(env.get("SLURM_JOB_CPUS_PER_NODE", ""), len(names))
    slots = _slots(env, len(names))
    if workers is not None and workers > sum(slots):
        slots = _spread(workers, cpus)
    return tuple(Host(name, count) for name, count in zip(names, slots, strict=True) if count)


def is_one_node_here(hosts: tuple[Host, ...]) -> bool:
    """Returns whether the allocation is this machine alone, on which no agent is needed."""
    return len(hosts) == 1 and is_here(hosts[0].name)


def names_of(nodes: str) -> list[str]:
    """Returns the names in Slurm's short form of a list of nodes, as ``n[1-3]``.

    Raises:
        LaunchError: `scontrol` does not say.
    """
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise LaunchError(
            f"SLURM_JOB_NODELIST is {nodes}, and `scontrol` does not say which nodes these are:"
            f" {error}. In a container, make Slurm's commands and configuration visible, or name"
            " the hosts with --hosts."
        ) from error
    return done.stdout.split()


def _expand_counts(text: str, count: int) -> list[int]:
    """Returns numbers that Slurm writes as ``4(x2),3``, one per node; ones where there are none."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    numbers = [int(number) for number, times in found for _ in range(int(times or 1))]
    return numbers if len(numbers) == count else [1] * count


def _slots(env: Mapping[str, str], nodes: int) -> list[int]:
    if env.get("SLURM_NTASKS"):
        return _expand_counts(env.get("SLURM_TASKS_PER_NODE", ""), nodes)
    gpus = env.get("SLURM_GPUS_ON_NODE", "")
    return [int(gpus) if gpus.isdigit() else 1] * nodes


def _spread(workers: int, cpus: list[int]) -> list[int]:
    """Returns workers for each node, as evenly as their processors allow.

    Raises:
        ConfigurationError: there are too few processors.
    """
    if workers > sum(cpus):
        raise ConfigurationError(
            f"{workers} workers were asked for, and the allocation has {sum(cpus)} processors on"
            f" {len(cpus)} nodes. Ask Slurm for as many tasks (`salloc -n {workers}`), or for fewer"
            " workers."
        )
    slots = [0] * len(cpus)
    for _ in range(workers):
        free = [node for node in range(len(cpus)) if slots[node] < cpus[node]]
        slots[min(free, key=lambda node: slots[node])] += 1
    return slots
