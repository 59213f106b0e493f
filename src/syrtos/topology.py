"""The rank of this process, the launcher that started it, and the address of this host.

The rank and the launcher come from pure functions over a mapping.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
from collections.abc import Mapping, Sequence

from syrtos.errors import ConfigurationError, WorldError

# Keras backends that have an exchange: folders of `syrtos.keras`.
BACKENDS = ("tensorflow", "jax", "torch")


@dataclasses.dataclass(frozen=True)
class World:
    """The workers of one run, seen from one of them. Counts and ranks are as in MPI."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node_rank: int = 0
    node_count: int = 1


def world_from_hosts(rank: int, hosts: Sequence[str]) -> World:
    """Returns the world in which worker ``i`` runs on ``hosts[i]``, seen from ``rank``."""
    nodes = list(dict.fromkeys(hosts))
    mine = [r for r, host in enumerate(hosts) if host == hosts[rank]]
    return World(
        rank, len(hosts), mine.index(rank), len(mine), nodes.index(hosts[rank]), len(nodes)
    )


@dataclasses.dataclass(frozen=True)
class Launch:
    """The launcher that started this process, from the environment.

    Attributes:
        starter: name of the launcher that set the variables.
        size: the number of workers that the variables promise.
        joins: whether our MPI can join that starter's workers into one world.
    """

    starter: str
    size: int
    joins: bool


# In this order: the innermost starter wins (`mpiexec` runs inside a Slurm step, never the reverse).
_STARTERS: tuple[tuple[str, str, bool], ...] = (
    ("mpiexec (MPICH)", "PMI_SIZE", True),
    ("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", False),
    ("a Slurm step", "SLURM_STEP_NUM_TASKS", False),
)


def detect(env: Mapping[str, str]) -> Launch | None:
    """Returns the launcher that started this process among others, or None for a plain process."""
    for starter, variable, joins in _STARTERS:
        if env.get(variable, "").isdigit():
            return Launch(starter, int(env[variable]), joins)
    return None


def check_world(launch: Launch | None, size: int) -> None:
    """Refuses a world smaller than the one that was asked for.

    Raises:
        WorldError: ``size`` workers met where ``launch`` promised more.
    """
    if launch is None or launch.size == size:
        return
    raise WorldError(
        f"This process was started by {launch.starter} as one of {launch.size} workers, but found"
        f" itself in a world of {size}. Each worker would have trained alone. {_fix(launch)}"
    )


def check_keras_backend(env: Mapping[str, str], size: int) -> None:
    """Refuses a backend that has no exchange yet, before Keras fails to import it.

    Raises:
        ConfigurationError: KERAS_BACKEND names one, and there are several workers.
    """
    backend = env.get("KERAS_BACKEND") or "tensorflow"
    if size > 1 and backend not in BACKENDS:
        raise ConfigurationError(
            f"KERAS_BACKEND={backend} can't exchange gradients between {size} workers yet; each"
            f" would train alone. Backends that can: {', '.join(BACKENDS)}. Set"
            " KERAS_BACKEND=tensorflow, or run with one worker."
        )


def check_servers(env: Mapping[str, str], servers: int) -> None:
    """Refuses parameter servers for a backend that has none.

    Raises:
        ConfigurationError: KERAS_BACKEND names one, and there are servers.
    """
    backend = env.get("KERAS_BACKEND") or "tensorflow"
    if servers and backend != "tensorflow":
        raise ConfigurationError(
            f"`--ps` has no meaning with KERAS_BACKEND={backend}: parameter servers take updates of"
            " TensorFlow's variables. Leave it out, or set KERAS_BACKEND=tensorflow."
        )


def check_tf_config(env: Mapping[str, str]) -> None:
    """Refuses a malformed TF_CONFIG.

    Raises:
        ConfigurationError: it is no JSON object.
    """
    text = env.get("TF_CONFIG")
    if not text:
        return
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ConfigurationError(
            f"TF_CONFIG is no JSON object: {text[:80]!r}. syrtos does not need it: unset it, or"
            ' write it as {"cluster": {"worker": ["host:port", ...]}, "task": {"type":'
            ' "worker", "index": 0}}.'
        )


def tf_config_of(env: Mapping[str, str], rank: int, size: int) -> dict[str, str]:
    """Returns TF_CONFIG with the task of ``rank``; empty if there is nothing to say.

    It is to be set where workers were started with one text for all.
    """
    config = json.loads(env.get("TF_CONFIG") or "{}")
    jobs = config.get("cluster", {})
    roles = [
        (role, k) for role in ("chief", "master", "worker") for k in range(len(jobs.get(role, [])))
    ]
    if len(roles) != size or size == 1:
        return {}
    role, index = roles[rank]
    return {"TF_CONFIG": json.dumps({**config, "task": {"type": role, "index": index}})}


def _fix(launch: Launch) -> str:
    if "Slurm" in launch.starter:
        return (
            "Start the step with `srun --mpi=pmi2 python -m syrtos train.py`, or run "
            f"`syrtos run -n {launch.size} train.py` once inside the allocation."
        )
    return (
        "syrtos brings its own MPI (MPICH): start the script with "
        f"`syrtos run -n {launch.size} train.py`, or with the `mpiexec` beside this Python."
    )


# No host has this address (RFC 5737): the way there is the default route.
_ELSEWHERE = "192.0.2.1"


def address_of_default_route() -> str:
    """Returns the IP address that this host has on its default route; empty where there is none."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # To connect a datagram socket sends nothing: it chooses the route, and so this host's
        # address on it.
        probe.connect((_ELSEWHERE, 9))
        return probe.getsockname()[0]
    return ""
