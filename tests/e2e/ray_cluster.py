"""A private Ray cluster on this machine, for tests: each node is a raylet of its own, so Ray sees several nodes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psutil

LONG = 300.0  # seconds


def missing() -> str | None:
    """Says why there can be no cluster here; None where it can."""
    return None if importlib.util.find_spec("ray") else "needs the package ray: `pip install ray`"


class RayCluster:
    """A running cluster; node 0 is its head, to which all that is started here is connected.

    Attributes:
        address: the address for `--with address=`.
    """

    def __init__(self, nodes: int, cpus: int = 1, dashboard: bool = False) -> None:
        """Starts ``nodes`` nodes, each with so many CPUs."""
        os.environ |= {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }  # other tests would leave them no time
        self._ray: Any = importlib.import_module("ray")
        cluster_utils: Any = importlib.import_module("ray.cluster_utils")
        head: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": dashboard}
        if dashboard:
            # The ports that Ray has by default may be those of another test.
            head |= {"dashboard_port": _free_port(), "dashboard_agent_listen_port": _free_port()}
        self._cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self._cpus, self._nodes = cpus, [self._cluster.head_node]
        self._ray.init(address=self.address, log_to_driver=False)
        for _ in range(nodes - 1):
            self.add()

    @property
    def dashboard(self) -> str:
        """The address of the head's dashboard, to which jobs are submitted."""
        return f"http://{self._cluster.head_node.webui_url}"

    def why_no_jobs(self) -> str | None:
        """Says why no jobs can be submitted here; None where they can."""
        return (
            None
            if self._cluster.head_node.webui_url
            else "needs Ray's dashboard: `pip install 'ray[default]'`"
        )

    def add(self) -> None:
        """Starts a further node."""
        self._nodes.append(self._cluster.add_node(num_cpus=self._cpus))

    def kill(self, node: int) -> None:
        """Kills the processes of a node, as in a power cut."""
        self._cluster.remove_node(self._nodes.pop(node), allow_graceful=False)

    def restore(self, nodes: int) -> None:
        """Starts nodes until there are as many again."""
        while len(self._nodes) < nodes:
            self.add()
        self.until_free(nodes)

    def until_free(self, cpus: int) -> None:
        """Waits until nothing takes any of so many CPUs."""
        deadline = time.monotonic() + LONG
        while (free := self._ray.available_resources().get("CPU", 0)) != cpus:
            assert time.monotonic() < deadline, f"{free} of {cpus} CPUs are free"
            time.sleep(0.2)

    def until_nothing_is_left(self) -> None:
        """Waits until neither agents nor workers that actors have started run any more."""
        deadline = time.monotonic() + LONG
        while left := list(of_syrtos()):
            assert time.monotonic() < deadline, left
            time.sleep(0.2)

    def close(self) -> None:
        """Ends all of it."""
        self._ray.shutdown()
        self._cluster.shutdown()


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def of_syrtos() -> Iterator[str]:
    """The command lines of processes of syrtos that Ray's processes have started, and of those that speak with Ray."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words, env = process.cmdline(), process.environ()
            if "syrtos_clusters.ray.driver" in words or (
                "syrtos" in " ".join(words) and _is_of_ray(env)
            ):
                yield " ".join(words)


def _is_of_ray(env: Mapping[str, str]) -> bool:
    return "RAY_RAYLET_PID" in env


@contextmanager
def cluster(nodes: int = 3, cpus: int = 1, dashboard: bool = False) -> Iterator[RayCluster]:
    """Context manager: a cluster with so many nodes."""
    started = RayCluster(nodes, cpus, dashboard)
    try:
        yield started
    finally:
        started.close()
