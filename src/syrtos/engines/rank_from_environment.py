"""This host's number among the hosts of a run, from variables of what started the command on each.

Each rule is a pure function of the environment. The variables' sources:

- ``SYRTOS_NODE_RANK``, ``SYRTOS_NODES``, ``SYRTOS_FIRST``: the manifests of
  `syrtos_clusters.kubernetes`, or a person.
- ``PET_*``: torchrun's, set by the torch runtimes of Kubeflow Trainer 2
  (pkg/runtime/framework/plugins/torch/torch.go).
- ``JAX_*``: set by the jax runtime of Kubeflow Trainer 2
  (pkg/runtime/framework/plugins/jax/jax.go).
- ``LWS_*``: LeaderWorkerSet (pkg/utils/pod/pod_utils.go).
- ``SM_*``: SageMaker's training toolkit and its SDK v3 (ENVIRONMENT_VARIABLES.md of
  sagemaker-training-toolkit).
- ``SKYPILOT_*``: SkyPilot (docs, "Distributed jobs on many VMs").
- ``DSTACK_*``: dstack (docs, "Distributed tasks").
- ``AWS_BATCH_*``: multi-node parallel jobs of AWS Batch (its user guide).
- ``SLURM_*``: a step with one task on each node (srun(1)).
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable, Mapping

from syrtos.errors import ConfigurationError

# The port at which hosts meet where the engine names none: that of torchrun, which the engines'
# networks let through.
_PORT = 29500


@dataclasses.dataclass(frozen=True)
class Place:
    """A host of a run that something has placed.

    Attributes:
        engine: what has placed it, as a name for a person.
        rank: the number of this host, from 0.
        hosts: the number of hosts.
        first: the address of host 0, at which all meet.
        port: the port there.
        workers: workers on this host; 0: one for each of its GPUs, or one.
        name: the name of this host in the run; empty: that of the machine. Where machines are
            replaced, and a run goes on on others, it must not be theirs.
    """

    engine: str
    rank: int
    hosts: int
    first: str
    port: int = _PORT
    workers: int = 0
    name: str = ""


def place_of(env: Mapping[str, str]) -> Place | None:
    """Returns the place that the environment describes; None of a process that is alone.

    Raises:
        ConfigurationError: two engines describe different places, or an engine does not say where
            the first host is.
    """
    found = [place for rule in _RULES if (place := rule(env)) is not None and place.hosts > 1]
    for other in found[1:]:
        if (other.rank, other.hosts) != (found[0].rank, found[0].hosts):
            raise ConfigurationError(
                f"The variables of {found[0].engine} say that this is host {found[0].rank} of"
                f" {found[0].hosts}, and those of {other.engine} host {other.rank} of"
                f" {other.hosts}. Unset those of one of the two."
            )
    if not found:
        return None
    place = found[0]
    if not place.first:
        raise ConfigurationError(
            f"{place.engine} has started this as host {place.rank} of {place.hosts}, and its"
            " variables don't say where host 0 is. Set SYRTOS_NODE_RANK, SYRTOS_NODES and"
            " SYRTOS_FIRST=address:port on each host."
        )
    workers = env.get("SYRTOS_SLOTS", "")
    if workers == "cores":
        return dataclasses.replace(place, workers=-1)
    return dataclasses.replace(place, workers=int(workers)) if workers.isdigit() else place


def _numbers(env: Mapping[str, str], rank: str, hosts: str) -> tuple[int, int] | None:
    """Returns the values of two variables; None if they are no numbers."""
    found = env.get(rank, ""), env.get(hosts, "")
    return (int(found[0]), int(found[1])) if all(text.isdigit() for text in found) else None


def _count(text: str | None) -> int:
    """Returns a number of workers.

    The number is -1 for ``cpu``, which means a worker for each core, and 0 for any other text that
    is no number (``auto``, ``gpu``).
    """
    return -1 if text == "cpu" else int(text) if text and text.isdigit() else 0


def _syrtos(env: Mapping[str, str]) -> Place | None:
    # Kubernetes gives this variable to the pods of an Indexed Job
    rank = "SYRTOS_NODE_RANK" if "SYRTOS_NODE_RANK" in env else "JOB_COMPLETION_INDEX"
    if (at := _numbers(env, rank, "SYRTOS_NODES")) is None:
        return None
    first, _, port = env.get("SYRTOS_FIRST", "").rpartition(":")
    return Place("syrtos", *at, first, int(port) if port.isdigit() else _PORT)


def _torchrun(env: Mapping[str, str]) -> Place | None:
    if (at := _numbers(env, "PET_NODE_RANK", "PET_NNODES")) is None:
        return None
    port = env.get("PET_MASTER_PORT", "")
    return Place(
        "Kubeflow Trainer (torch)",
        *at,
        env.get("PET_MASTER_ADDR", ""),
        int(port) if port.isdigit() else _PORT,
        _count(env.get("PET_NPROC_PER_NODE")),
    )


def _jax(env: Mapping[str, str]) -> Place | None:
    if (at := _numbers(env, "JAX_PROCESS_ID", "JAX_NUM_PROCESSES")) is None:
        return None
    first, _, port = env.get("JAX_COORDINATOR_ADDRESS", "").rpartition(":")
    return Place("Kubeflow Trainer (jax)", *at, first, int(port) if port.isdigit() else _PORT)


def _leader_worker_set(env: Mapping[str, str]) -> Place | None:
    at = _numbers(env, "LWS_WORKER_INDEX", "LWS_GROUP_SIZE")
    return at and Place("LeaderWorkerSet", *at, env.get("LWS_LEADER_ADDRESS", ""))


def _sagemaker(env: Mapping[str, str]) -> Place | None:
    try:
        hosts = sorted(json.loads(env["SM_HOSTS"]))
        rank = hosts.index(env["SM_CURRENT_HOST"])
    except (KeyError, ValueError, TypeError):
        return None
    return Place(
        "SageMaker",
        rank,
        len(hosts),
        hosts[0],
        workers=_count(env.get("SM_NUM_GPUS")),
        name=env["SM_CURRENT_HOST"],
    )


def _skypilot(env: Mapping[str, str]) -> Place | None:
    at = _numbers(env, "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES")
    addresses = env.get("SKYPILOT_NODE_IPS", "").split()
    gpus = _count(env.get("SKYPILOT_NUM_GPUS_PER_NODE"))
    return at and Place("SkyPilot", *at, addresses[0] if addresses else "", workers=gpus)


def _dstack(env: Mapping[str, str]) -> Place | None:
    at = _numbers(env, "DSTACK_NODE_RANK", "DSTACK_NODES_NUM")
    gpus = _count(env.get("DSTACK_GPUS_PER_NODE"))
    return at and Place("dstack", *at, env.get("DSTACK_MASTER_NODE_IP", ""), workers=gpus)


def _aws_batch(env: Mapping[str, str]) -> Place | None:
    at = _numbers(env, "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES")
    if at is None:
        return None
    # The main node knows its own address by no variable: it listens at all of its addresses.
    is_main = env.get("AWS_BATCH_JOB_MAIN_NODE_INDEX") == env["AWS_BATCH_JOB_NODE_INDEX"]
    first = "0.0.0.0" if is_main else env.get("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "")
    return Place("AWS Batch", *at, first)


def _slurm(env: Mapping[str, str]) -> Place | None:
    at = _numbers(env, "SLURM_NODEID", "SLURM_STEP_NUM_NODES")
    if at is None or env["SLURM_STEP_NUM_NODES"] != env.get("SLURM_STEP_NUM_TASKS"):
        # several tasks on a node would each be a worker, which needs PMI
        return None
    nodes = env.get("SLURM_STEP_NODELIST", "")
    # Neither SLURM_LAUNCH_NODE_IPADDR, which is where `srun` runs, nor this host's name: a world of
    # one without a word.
    first = subprocess.run(
        ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=False
    )
    # jobs of one host don't meet each other
    port = 20000 + int(env.get("SLURM_JOB_ID") or 0) % 10000
    return Place("Slurm", *at, (first.stdout.split() or [""])[0], port)


_RULES: tuple[Callable[[Mapping[str, str]], Place | None], ...] = (
    _syrtos, _torchrun, _jax, _leader_worker_set, _sagemaker, _skypilot, _dstack, _aws_batch, _slurm,
)  # fmt: skip
