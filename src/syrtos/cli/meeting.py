"""`syrtos run --on placed`: the hosts of a run meet, and the first launches the run.

This command was started on each of the hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable

from syrtos import settings
from syrtos.cli.execution import ConnectedHosts
from syrtos.engines import gathered_hosts
from syrtos.errors import ConfigurationError
from syrtos.launch.remote.agents import Agent
from syrtos.launch.remote.rendezvous import Cluster, Meeting, attend


def meet(chosen: argparse.Namespace, launch: Callable[[ConnectedHosts | None], int]) -> int:
    """Launches the run on all hosts from the first process.

    The other processes start the workers of their hosts.

    Raises:
        ConfigurationError: nothing says that this process is one of several.
    """
    cluster = gathered_hosts.cluster_to_form(settings.environment())
    if cluster is None:
        raise ConfigurationError(
            "`--on placed` was given, and no variable says that this command was started on several"
            " hosts (TF_CONFIG, PET_NODE_RANK, SM_HOSTS, SLURM_NODEID ...). Set SYRTOS_NODE_RANK,"
            " SYRTOS_NODES and SYRTOS_FIRST=address:port on each host, or leave the option out."
        )
    if (
        chosen.detach
        or chosen.engine_values
        or chosen.gpus_per_worker
        or chosen.hosts
        or chosen.hostfile
        or chosen.discover
    ):
        raise ConfigurationError(
            "`--on placed` meets hosts that something else has started: leave out --hosts,"
            " --hostfile, --discover, --detach, --with and --gpus-per-worker."
        )
    # `--timeout`, or that of the environment, which all processes of a TF_CONFIG cluster may have
    # been given.
    is_given = chosen.timeout != settings.Options().timeout
    patience = chosen.timeout if is_given else settings.options_from(settings.environment()).timeout
    return attend(cluster, patience) if cluster.rank else _lead(cluster, patience, chosen, launch)


def _lead(
    cluster: Cluster,
    patience: float,
    chosen: argparse.Namespace,
    launch: Callable[[ConnectedHosts | None], int],
) -> int:
    code = 1
    # While it waits for others: the first process of a container ignores a SIGTERM that it does not
    # answer.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    meeting = Meeting(cluster, patience)

    def on_return(take: Callable[[Agent], None]) -> None:
        meeting.returned = take

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: meeting.close(code))
        meeting.wait()
        # From here on the launcher answers it; one that another host passes on after the end of the
        # run changes no exit code.
        signal.signal(signal.SIGTERM, lambda *_: None)
        chosen.are_placed = True
        chosen.hosts = ",".join(f"{host}:{count}" for host, count in meeting.slots.items())
        code = launch(ConnectedHosts(cluster.host, meeting.agents, on_return))
    return code
