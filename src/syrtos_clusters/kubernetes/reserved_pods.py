"""Pods that are held for a job of `syrtos serve`, by a process that need not be in the cluster.

A Job of Kubernetes owns them, and replaces those that are lost. This process touches a file in the
job's folder, which the pods see too: when it ends, for whatever reason, they end some minutes later
(`syrtos_clusters.kubernetes.hold`).
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from syrtos.engines.reservation import EngineAwayError, Node, NodeRequest, Requester, Reservation
from syrtos.errors import LaunchError
from syrtos.settings import environment
from syrtos_clusters.kubernetes import manifests
from syrtos_clusters.kubernetes.cluster import KubernetesNamespace
from syrtos_clusters.kubernetes.diagnosis import GOES_ON, RunObjects, host_of, state_of
from syrtos_clusters.kubernetes.request import name_of, request_of_nodes

# In the job's folder: the file that is touched while this process lives, and the name of the Job,
# by which the next runner deletes that of one which was killed.
_LEASE, _NAME = "pods.lease", "pods.job"
_DELETED = "the Job {name} of Kubernetes, which held the pods, was deleted"
_LOOK = 1.0  # seconds between two looks at pods that are waited for
_EVERY = 3.0  # seconds between two looks at those that there are
# The longest name of a job that leaves room for a suffix, in letters (`request.name_of`).
_MOST_LETTERS = 33


class _ReservedPods(Reservation):
    def __init__(self, cluster: KubernetesNamespace, context: str, name: str, cpus: int) -> None:
        self._cluster, self._name, self._cpus = cluster, name, cpus
        reach = [
            sys.executable,
            "-P",
            "-m",
            "syrtos_clusters.kubernetes.reach",
            context,
            cluster.namespace,
        ]
        self.command = shlex.join(reach)
        needed = ("KUBECONFIG", "HOME", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
        self.variables = {name: value for name, value in environment().items() if name in needed}

    def nodes(self) -> tuple[Node, ...]:
        try:
            return self.nodes_among(self._cluster.look("Job", self._name))
        except EngineAwayError:
            # A server that is away for a moment says nothing of pods.
            return ()

    def nodes_among(self, seen: RunObjects) -> tuple[Node, ...]:
        """Returns the pods that are ready, one for each number."""
        ready = {host_of(pod): pod for pod in seen.pods if _is_ready(pod)}
        return tuple(
            Node(pod["metadata"]["name"], pod["status"]["podIP"], self._cpus)
            for _, pod in sorted(ready.items())
        )

    def why_taken_back(self) -> tuple[str, bool]:
        try:
            seen = self._cluster.look("Job", self._name)
        except LaunchError:
            return "", True
        if seen.owner is None or _is_deleted(seen):
            return _DELETED.format(name=self._name), False
        if seen.owner["spec"].get("suspend"):
            return f"Kubernetes has suspended the Job {self._name}, which held the pods", True
        return (
            f"Kubernetes has ended the pods. {_describe_state(seen)}".rstrip()
            if state_of(seen).is_over
            else ""
        ), True


def _is_deleted(seen: RunObjects) -> bool:
    return seen.owner is None or "deletionTimestamp" in seen.owner["metadata"]


def _describe_state(seen: RunObjects) -> str:
    """Returns why pods wait or have ended, without what a person then does with `syrtos run`."""
    return state_of(seen).why.removesuffix(GOES_ON).rstrip()


def _is_ready(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status") or {}
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    return (
        status.get("phase") == "Running"
        and conditions.get("Ready") == "True"
        and bool(status.get("podIP"))
        and "deletionTimestamp" not in pod["metadata"]
    )


@contextlib.contextmanager
def reserve_pods(wanted: NodeRequest, requester: Requester) -> Iterator[Reservation]:
    """Context manager: waits for pods, yields them, and deletes them.

    Raises:
        ConfigurationError: a value of `--with` is wrong, or there is no kube config.
        LaunchError: Kubernetes refuses the pods, or ``requester`` was over before they were there.
        EngineAwayError: the API server can't be reached.
    """
    lease, context = wanted.folder / _LEASE, wanted.values.get("context", "")
    name = f"{name_of('', wanted.job[:_MOST_LETTERS])}-{secrets.token_hex(3)}"
    command = (wanted.python, "-P", "-m", "syrtos_clusters.kubernetes.hold", str(lease))
    request = request_of_nodes(wanted, name, command)
    cluster = KubernetesNamespace(context, wanted.values.get("namespace", ""))
    cpu = request.quantity("cpu", str(wanted.workers))
    held = _ReservedPods(cluster, context, name, int(cpu) if cpu.isdigit() else wanted.workers)
    noted = wanted.folder / _NAME
    if noted.exists():
        cluster.delete("Job", noted.read_text())
    noted.write_text(name)
    lease.touch()
    cluster.create(manifests.holding_job(request))
    over, granted = threading.Event(), threading.Event()
    # Apart from each other: a server that does not answer must not end the lease.
    for task in (
        functools.partial(_renew, lease, over),
        functools.partial(_watch, over, granted, requester, held),
    ):
        threading.Thread(target=task, name="syrtos-pods", daemon=True).start()
    try:
        _await_pods(cluster, name, wanted.count, held, requester)
        granted.set()
        yield held
    finally:
        over.set()
        # Where the server is away, the pods end by themselves, since their lease does.
        with contextlib.suppress(LaunchError):
            cluster.delete("Job", name)


def _await_pods(
    cluster: KubernetesNamespace, name: str, count: int, held: _ReservedPods, requester: Requester
) -> None:
    told = ""
    while True:
        if requester.is_over():
            raise LaunchError(
                "Gave up waiting for pods of Kubernetes: the job was stopped, or has waited for too"
                " long."
            )
        try:
            seen = cluster.look("Job", name)
        except EngineAwayError as error:
            why = str(error)
        else:
            if len(held.nodes_among(seen)) == count:
                return
            if _is_deleted(seen):
                requester.note_loss(_DELETED.format(name=name), again=False)
                raise LaunchError(_DELETED.format(name=name))
            why = _describe_state(seen)
            if state_of(seen).is_over:
                raise LaunchError(f"Kubernetes gives no pods: {why}")
        if why and why != told:
            requester.tell(f"Kubernetes: {why}")
            told = why
        time.sleep(_LOOK)


def _renew(lease: Path, over: threading.Event) -> None:
    """Touches the lease until the pods are given back."""
    while not over.wait(_EVERY):
        # A full disk, or storage that is away for a moment, is no reason to end here.
        with contextlib.suppress(OSError):
            lease.touch()


def _watch(
    over: threading.Event, granted: threading.Event, requester: Requester, held: _ReservedPods
) -> None:
    """Passes on that Kubernetes takes the pods back."""
    while not over.wait(_EVERY):
        if granted.is_set():
            lost, again = held.why_taken_back()
            if lost and not over.is_set():
                requester.note_loss(lost, again)
                return
