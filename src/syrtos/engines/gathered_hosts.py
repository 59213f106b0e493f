"""Hosts on each of which something has started the same command once.

They meet, and the first of them launches the run.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from syrtos.engines.rank_from_environment import Place, place_of
from syrtos.errors import ConfigurationError
from syrtos.launch import resources
from syrtos.launch.remote.rendezvous import Cluster, cluster_of
from syrtos.topology import detect


def cluster_to_form(env: Mapping[str, str]) -> Cluster | None:
    """Returns the processes that this one is to meet; None where it is a worker, or alone.

    Raises:
        ConfigurationError: the environment describes two different places, or one that can't be.
    """
    started = detect(env)
    # Another starter has made this process a worker already; a Slurm step may be one task on each
    # node.
    if started is not None and started.starter != "a Slurm step":
        return None
    place = place_of(env)
    if started is not None:
        return place and _cluster_at(place)
    tasks = cluster_of(env)
    if tasks is None or place is None:
        return tasks or (place and _cluster_at(place))
    if tasks.leads and (tasks.rank, len(tasks.names)) != (place.rank, place.hosts):
        raise ConfigurationError(
            f"TF_CONFIG says that this is task {tasks.rank} of {len(tasks.names)}, and the"
            f" variables of {place.engine} that it is host {place.rank} of {place.hosts}. Unset"
            " those of one of the two."
        )
    return tasks


def _cluster_at(place: Place) -> Cluster:
    cores = len(os.sched_getaffinity(0))
    return Cluster(
        source=place.engine,
        names=tuple(f"host {rank}" for rank in range(place.hosts)),
        rank=place.rank,
        address=(place.first, place.port),
        host=place.name or socket.gethostname(),
        workers=cores if place.workers < 0 else place.workers or resources.gpus() or 1,
    )
