"""An emulated Kubernetes on this machine, for jobs of a service: an API server, a controller of Jobs, and pods that are namespaces.

The server is `kubernetes_api` of the unit tests, the pods are those of `pods`. The controller keeps a pod for each number of a Job, in the
place of one that is gone too, and deletes those of Jobs that are not there any more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pods
from kubernetes_api import Emulated, emulated

_LABEL = "batch.kubernetes.io/job-name"
_EVERY = 0.1  # seconds between two looks of the controller


class PodCluster:
    """A running cluster.

    Attributes:
        server: the API server.
        machine: the machine for its pods.
    """

    def __init__(self, server: Emulated, machine: pods.Machine) -> None:
        self.server, self.machine = server, machine
        self._pods: dict[str, tuple[str, pods.Pod]] = {}
        self._over = threading.Event()
        server.enter = lambda name: self._pods[name][1].enter()

    def control(self) -> None:
        """Does what a controller of Jobs does, until the cluster ends."""
        while not self._over.wait(_EVERY):
            objects = dict(self.server.objects)
            jobs = {name: job for (plural, name), job in objects.items() if plural == "jobs"}
            for name, (job, pod) in list(self._pods.items()):
                if job not in jobs or pod.code is not None:
                    self._remove(name)
            for name, job in jobs.items():
                here = {pod.spec.host for owner, pod in self._pods.values() if owner == name}
                if missing := [
                    host for host in range(job["spec"]["completions"]) if host not in here
                ]:
                    self._add(name, job, missing)
        for name in list(self._pods):
            self._remove(name)

    def end(self) -> None:
        """Ends the controller, and with it all pods."""
        self._over.set()

    def kill(self, host: int) -> None:
        """Ends the pod of a number as its node does that loses its power."""
        next(pod for _, pod in self._pods.values() if pod.spec.host == host).kill()

    def running(self) -> list[str]:
        """Returns the names of the pods that there are."""
        return list(self._pods)

    def _add(self, name: str, job: dict[str, Any], hosts: list[int]) -> None:
        specs = pods._specs([{**job, "kind": "Job"}], self.machine.folder)
        for host in hosts:
            pod = pods.Pod(self.machine, specs[host], specs, [])
            pod.join_network()
            made = self.server.add_pod(name, host, label=_LABEL)
            self._pods[made] = (name, pod)
            status = {
                "phase": "Running",
                "podIP": pod.spec.address,
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            self.server.put("pods", {**self.server.objects["pods", made], "status": status})

    def _remove(self, name: str) -> None:
        with suppress(KeyError):
            self.server.remove_pod(name)
        self._pods.pop(name)[1].delete()


def missing() -> str | None:
    """Says why there can be no cluster here; None where it can."""
    return pods.missing()


@contextmanager
def cluster(folder: Path) -> Iterator[PodCluster]:
    """Context manager: a cluster, whose pods end with it."""
    with emulated(folder) as server, pods.machine(folder) as machine:
        found = PodCluster(server, machine)
        thread = threading.Thread(target=found.control, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            found.end()
            thread.join(30.0)
