"""Kubernetes: a run is a JobSet, Job or TrainJob, whose pods meet by variables they are given."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from syrtos.engines.engine import Engine, EngineRequest, RunState, Submitted
from syrtos.engines.reservation import NodeRequest, Requester, Reservation
from syrtos.errors import ConfigurationError, LaunchError
from syrtos.launch.terminal import output
from syrtos_clusters.kubernetes import manifests
from syrtos_clusters.kubernetes.diagnosis import state_of
from syrtos_clusters.kubernetes.request import (
    SETTINGS,
    Kind,
    KubernetesRun,
    request_of,
    sample_of_jobs,
)

if TYPE_CHECKING:
    from syrtos_clusters.kubernetes.cluster import KubernetesNamespace

_FILE = "run.yaml"
# Seconds in which an ended run's objects must be gone before those of the next have their names.
_GONE = 120.0
# What a run has beside the object that owns its pods.
_BESIDE = ("Secret", "ConfigMap", "Service")


class Kubernetes(Engine):
    """Runs in pods of Kubernetes 1.31 and later."""

    name = "kubernetes"
    settings = SETTINGS

    def files(self, wanted: EngineRequest) -> dict[str, str]:
        return {_FILE: manifests.text(request_of(wanted))}

    def submit(self, wanted: EngineRequest) -> dict[str, str]:
        request = request_of(wanted)
        cluster = _cluster(wanted.values.get("context", ""), wanted.values.get("namespace", ""))
        try:
            wanted.run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"The folder {wanted.run_dir} keeps on this machine by what name the run is found"
                f" again, and can't be made: {error.strerror}. Name another with --run-dir; in the"
                " pods the run directory of that name is in the first claim."
            ) from error
        _make_room(cluster, request)
        for note in manifests.notes(request):
            output.say(note)
        _create(cluster, request)
        return {
            "kind": request.kind,
            "name": request.name,
            "namespace": cluster.namespace,
            "context": wanted.values.get("context", ""),
            "pods": str(request.pods),
        }

    def check_jobs(self, values: Mapping[str, str]) -> None:
        # Objects are made of values of --with, and none sent: a wrong one is refused here.
        manifests.holding_job(sample_of_jobs(values))
        # the kube config is read, and no server asked
        _cluster(values.get("context", ""), values.get("namespace", ""))

    def reserve(
        self, wanted: NodeRequest, requester: Requester
    ) -> AbstractContextManager[Reservation]:
        # only here: --dry-run needs no client
        from syrtos_clusters.kubernetes.reserved_pods import reserve_pods

        return reserve_pods(wanted, requester)

    def submitted_run(self, facts: Mapping[str, str]) -> Submitted:
        cluster = _cluster(facts["context"], facts["namespace"])
        return _Run(cluster, cast("Kind", facts["kind"]), facts["name"], int(facts["pods"]))


def _cluster(context: str, namespace: str) -> KubernetesNamespace:
    try:
        # only here: it takes a second, and --dry-run needs none
        from syrtos_clusters.kubernetes.cluster import KubernetesNamespace
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"`--on kubernetes` needs the package {error.name}: `pip install 'syrtos[kubernetes]'`."
        ) from error
    return KubernetesNamespace(context, namespace)


def _make_room(cluster: KubernetesNamespace, request: KubernetesRun) -> None:
    """Deletes the objects of an ended run of the same name.

    Raises:
        LaunchError: it goes on, or its objects don't go.
    """
    seen = cluster.look(request.kind, request.name)
    if seen.owner is None:
        return
    if not state_of(seen).is_over:
        raise LaunchError(
            f"{request.kind} {request.name} is in the namespace {cluster.namespace} already, and"
            " goes on: `syrtos logs -f` follows it and `syrtos stop` ends it, both with its run"
            " directory. For another run name another run directory (--run-dir), or the objects"
            " (`--with name=`)."
        )
    _delete(cluster, request.kind, request.name)
    began = time.monotonic()
    while cluster.look(request.kind, request.name).owner is not None:
        if time.monotonic() - began > _GONE:
            raise LaunchError(
                f"The ended {request.kind} {request.name} is being deleted, and not gone after"
                f" {_GONE:.0f} s: `kubectl describe {request.kind.lower()} {request.name}` may say"
                " why. Wait, or name these objects otherwise (`--with name=`)."
            )
        time.sleep(1.0)


def _create(cluster: KubernetesNamespace, request: KubernetesRun) -> None:
    """Creates all objects of a run, or none.

    Raises:
        LaunchError: the cluster refuses one.
    """
    created: list[dict[str, Any]] = []
    try:
        for each in manifests.objects(request, secrets.token_hex(32)):
            created.append(
                cluster.create(each) | {"kind": each["kind"], "apiVersion": each["apiVersion"]}
            )
    except BaseException:
        for each in reversed(created):
            cluster.delete(each["kind"], request.name)
        raise
    *beside, owner = created
    cluster.own(owner, [each["kind"] for each in beside])


def _delete(cluster: KubernetesNamespace, kind: Kind, name: str) -> None:
    for each in (kind, *_BESIDE):
        cluster.delete(each, name)


class _Run(Submitted):
    """A run, by the name of its objects."""

    def __init__(self, cluster: KubernetesNamespace, kind: Kind, name: str, pods: int) -> None:
        self._cluster, self._name, self._pods = cluster, name, pods
        self._kind: Kind = kind
        self.name = f"{kind} {name}"

    def state(self) -> RunState:
        return self._look()[1]

    def _look(self) -> tuple[list[Mapping[str, Any]], RunState]:
        seen = self._cluster.look(self._kind, self._name)
        return list(seen.pods), state_of(seen)

    def output(self, follow: bool) -> Iterator[bytes]:
        from syrtos_clusters.kubernetes.logs import PodLogs

        logs = PodLogs(self._cluster, self._pods > 1)
        if not follow:
            return logs.read_until_now(self._look()[0])

        def look() -> tuple[list[Mapping[str, Any]], bool]:
            pods, state = self._look()
            return pods, state.is_over

        return logs.follow_pods(look)

    def stop(self, at_once: bool = False) -> None:
        _delete(self._cluster, self._kind, self._name)
        if at_once:
            self._cluster.kill(self._kind, self._name)


ENGINE = Kubernetes()
