"""The API server, by the official client: objects are created, read and deleted.

A refusal of the server is said in a sentence.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

from syrtos.engines.reservation import EngineAwayError
from syrtos.errors import ConfigurationError, LaunchError
from syrtos.settings import environment
from syrtos_clusters.kubernetes.diagnosis import RunObjects, describe_refusal
from syrtos_clusters.kubernetes.manifests import POD_LABELS
from syrtos_clusters.kubernetes.pods import CONTAINER, Object
from syrtos_clusters.kubernetes.request import Kind

# Group, version and plural of the kinds that own pods.
_OWNERS = {
    "Job": ("batch", "v1", "jobs"),
    "JobSet": ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    "TrainJob": ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
}
_NOT_INSTALLED = {
    "JobSet": (
        "the cluster has no JobSets: ask its administrator for the JobSet controller"
        " (https://jobset.sigs.k8s.io), or say `--with kind=Job`, which needs nothing."
    ),
    "TrainJob": (
        "the cluster has no TrainJobs: ask its administrator for Kubeflow Trainer 2.2 or newer, or"
        " say `--with kind=Job`, which needs nothing."
    ),
}
_SECONDS = 30.0  # for one answer
_ATTEMPTS = 3


class KubernetesNamespace:
    """A namespace of a cluster.

    Attributes:
        namespace: its name.
    """

    def __init__(self, context: str = "", namespace: str = "") -> None:
        """Finds the cluster by the kube config, or by what a pod is given.

        Raises:
            ConfigurationError: there is neither.
        """
        own, found = _read_configuration(context)
        own.retries = _ATTEMPTS
        self.namespace = namespace or found
        api = client.ApiClient(own)
        self._api: Any = api
        self._core: Any = client.CoreV1Api(api)
        self._custom: Any = client.CustomObjectsApi(api)

    # -- objects -----------------------------------------------------------------------------------

    def create(self, made: Object) -> Object:
        """Creates an object, and returns it as the server has it.

        Raises:
            LaunchError: the server refuses it.
        """
        kind = made["kind"]
        with _explaining_refusals(kind, made["metadata"]["name"], self.namespace):
            if kind in _OWNERS:
                return self._custom.create_namespaced_custom_object(
                    *self._resource_path(kind), body=made, _request_timeout=_SECONDS
                )
            create = getattr(self._core, f"create_namespaced_{_snake(kind)}")
            return self._plain(create(self.namespace, made, _request_timeout=_SECONDS))

    def own(self, owner: Object, kinds: Sequence[str]) -> None:
        """Lets objects of the owner's name be deleted with it.

        It is no more than tidy: without the right to do so, the objects stay.
        """
        meta = owner["metadata"]
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": meta["name"],
            "uid": meta["uid"],
        }
        body = {"metadata": {"ownerReferences": [reference]}}
        for kind in kinds:
            patch = getattr(self._core, f"patch_namespaced_{_snake(kind)}")
            with contextlib.suppress(ApiException, urllib3.exceptions.HTTPError):
                patch(meta["name"], self.namespace, body, _request_timeout=_SECONDS)

    def delete(self, kind: str, name: str) -> None:
        """Deletes an object, which goes once all it owns has gone; does nothing if there is none.

        Raises:
            LaunchError: the server refuses it.
        """
        options = client.V1DeleteOptions(propagation_policy="Foreground")
        with _explaining_refusals(kind, name, self.namespace), _missing_is_fine():
            if kind in _OWNERS:
                self._custom.delete_namespaced_custom_object(
                    *self._resource_path(kind), name=name, body=options, _request_timeout=_SECONDS
                )
            else:
                delete = getattr(self._core, f"delete_namespaced_{_snake(kind)}")
                delete(name, self.namespace, body=options, _request_timeout=_SECONDS)

    def kill(self, kind: Kind, name: str) -> None:
        """Deletes the pods of a run without giving them time.

        Raises:
            LaunchError: the server refuses it.
        """
        with _explaining_refusals("Pod", name, self.namespace), _missing_is_fine():
            self._core.delete_collection_namespaced_pod(
                self.namespace,
                label_selector=f"{POD_LABELS[kind]}={name}",
                grace_period_seconds=0,
                _request_timeout=_SECONDS,
            )

    # -- what has become of them -------------------------------------------------------------------

    def look(self, kind: Kind, name: str) -> RunObjects:
        """Returns what the server tells of a run.

        Raises:
            LaunchError: the server does not tell it.
        """
        with _explaining_refusals(kind, name, self.namespace):
            owner: Object | None = None
            with _missing_is_fine():
                owner = self._custom.get_namespaced_custom_object(
                    *self._resource_path(kind), name=name, _request_timeout=_SECONDS
                )
            pods = self.pods(kind, name)
            # Events say why pods wait: they are asked for only where some do.
            settled = owner is None or (pods and all(_phase(pod) != "Pending" for pod in pods))
            return RunObjects(kind, name, owner, pods, [] if settled else self._events(name))

    def pods(self, kind: Kind, name: str) -> list[Object]:
        """Returns the pods of a run."""
        selector = f"{POD_LABELS[kind]}={name}"
        listed = self._core.list_namespaced_pod(
            self.namespace, label_selector=selector, _request_timeout=_SECONDS
        )
        return self._plain(listed)["items"]

    def _events(self, name: str) -> list[Object]:
        """Returns the events of a run's objects; none without the right to read them."""
        try:
            listed = self._core.list_namespaced_event(self.namespace, _request_timeout=_SECONDS)
        except ApiException:
            return []
        events: list[Object] = self._plain(listed)["items"]
        # Its own, its Job's and its pods': another run's name may begin with this one's.
        names = re.compile(rf"{name}(-node-0)?(-\d+-[a-z0-9]+)?")
        mine = [
            each
            for each in events
            if names.fullmatch(str(each.get("involvedObject", {}).get("name", "")))
        ]
        return sorted(
            mine, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or "")
        )

    def log(self, pod: str, follow: bool) -> Iterator[bytes]:
        """Yields the lines that a pod has printed, each after its timestamp.

        With ``follow`` it goes on until the pod's container ends.

        Raises:
            ApiException: there is no such pod, or it has not begun.
            urllib3.exceptions.HTTPError: the connection was lost.
        """
        # As a stream (_preload_content): a log that is followed has no end to wait for.
        answer: Any = self._core.read_namespaced_pod_log(
            pod,
            self.namespace,
            container=CONTAINER,
            follow=follow,
            timestamps=True,
            _preload_content=False,
        )
        try:
            rest = b""
            for piece in answer.stream(1 << 16, decode_content=False):
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines
            if rest:
                yield rest
        finally:
            answer.close()

    def execute(self, pod: str, command: str) -> Any:
        """Starts a shell's command in a pod, and returns the connection to it.

        The connection is a `kubernetes.stream.ws_client.WSClient`.

        Raises:
            LaunchError: the server refuses it.
        """
        with _explaining_refusals("Pod", pod, self.namespace):
            connection = stream(
                self._core.connect_get_namespaced_pod_exec,
                pod,
                self.namespace,
                container=CONTAINER,
                command=["/bin/sh", "-c", command],
                stdin=True,
                stdout=True,
                stderr=True,
                tty=False,
                binary=True,
                _preload_content=False,
            )
            # Private (kubernetes 37.0.1): the connection would keep a copy of all that it reads,
            # which `stream` can't be told to leave out.
            connection._all = _Nothing()
            return connection

    def _resource_path(self, kind: str) -> tuple[str, str, str, str]:
        group, version, plural = _OWNERS[kind]
        return group, version, self.namespace, plural

    def _plain(self, found: object) -> Any:
        """Returns a model of the client as the JSON that it was made from."""
        return self._api.sanitize_for_serialization(found)


class _Nothing:
    """Takes the place of a buffer that nobody reads."""

    def write(self, data: bytes) -> None:
        """Forgets the data."""


def _phase(pod: Mapping[str, Any]) -> str:
    return (pod.get("status") or {}).get("phase", "Pending")


def _snake(kind: str) -> str:
    return {"ConfigMap": "config_map"}.get(kind, kind.lower())


def _read_configuration(context: str) -> tuple[Any, str]:
    """Returns how the server is reached, and the namespace.

    Raises:
        ConfigurationError: nothing says it.
    """
    own = client.Configuration()
    files = environment().get("KUBECONFIG") or config.KUBE_CONFIG_DEFAULT_LOCATION
    try:
        config.load_kube_config(files, context or None, own)
        contexts, active = cast(
            "tuple[list[dict[str, Any]], dict[str, Any]]", config.list_kube_config_contexts(files)
        )
        chosen = next((each for each in contexts if each["name"] == context), active)
        return own, chosen["context"].get("namespace") or "default"
    except config.ConfigException as error:
        if context:
            raise ConfigurationError(
                f"The kube config has no context {context}, or it can't be used: {error} `kubectl"
                " config get-contexts` lists them."
            ) from error
        failed = error
    try:
        config.load_incluster_config(client_configuration=own)
    except config.ConfigException as error:
        raise ConfigurationError(
            f"`--on kubernetes` needs a kube config that says where the cluster is: {failed} Set"
            " KUBECONFIG, or let your provider's command write ~/.kube/config; `kubectl get pods`"
            " shows whether it works. `--dry-run` needs none."
        ) from error
    with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="utf-8") as file:
        return own, file.read().strip()


@contextlib.contextmanager
def _missing_is_fine() -> Iterator[None]:
    try:
        yield
    except ApiException as error:
        if error.status != 404:
            raise


@contextlib.contextmanager
def _explaining_refusals(kind: str, name: str, namespace: str) -> Iterator[None]:
    """Context manager: what the server refuses is said in a sentence.

    Raises:
        LaunchError: it refuses something.
        EngineAwayError: it can't be reached, or can't answer now.
    """
    try:
        yield
    except ApiException as error:
        text = f"{kind} {name}: {_meaning(error, kind, name, namespace)}"
        # The server has too much to do, or is being replaced.
        is_away = error.status == 429 or (error.status or 0) >= 500
        raise (EngineAwayError(text) if is_away else LaunchError(text)) from error
    except urllib3.exceptions.HTTPError as error:
        raise EngineAwayError(
            f"The cluster's API server can't be reached: {error}. `kubectl get pods` shows whether"
            " it is the network, or the kube config."
        ) from error


def _meaning(error: ApiException, kind: str, name: str, namespace: str) -> str:
    """Returns what an answer means, and what to do."""
    body = str(error.body or "")
    message = _message(body) or str(error.reason or "no reason is given")
    if error.status == 401:
        return (
            "the cluster does not accept the kube config's credentials: log in again, as your"
            " provider's documentation says."
        )
    if error.status == 403 and "is forbidden: User" in message:
        return (
            f"this user may not do it ({message.rstrip('.')}): ask the cluster's administrator for"
            f" a role in the namespace {namespace} with the rights that docs/kubernetes.md lists."
        )
    if error.status == 404 and "namespaces" in message:
        return (
            f"there is no namespace {namespace}: create it, or name another with `--with"
            " namespace=`."
        )
    if error.status == 404 and kind in _NOT_INSTALLED:
        return _NOT_INSTALLED[kind]
    if error.status == 409:
        return (
            f"there is one already: `kubectl delete {kind.lower()} {name}` removes it (`syrtos"
            " stop` does for a run), or name these with `--with name=`."
        )
    return describe_refusal(message)


def _message(body: str) -> str:
    """Returns the message of a Status object (Kubernetes API, "Response Status Kind").

    Returns the text itself if it is no such object.
    """
    try:
        return str(json.loads(body).get("message", ""))
    except (ValueError, AttributeError):
        return body.strip()
