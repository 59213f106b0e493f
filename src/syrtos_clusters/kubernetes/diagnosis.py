"""The state of a run, and why it waits or has failed: pure functions of its Kubernetes objects.

The words are those of the kubelet, the scheduler and the controllers (Kubernetes, "Pod Lifecycle",
"Jobs").
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from syrtos.engines.engine import STOPPED, RunState
from syrtos_clusters.kubernetes.pods import CONTAINER, INDEX
from syrtos_clusters.kubernetes.request import Kind

Object = Mapping[str, Any]

# What a person does then with a run of `syrtos run`.
GOES_ON = "The same command with this run directory goes on from the last snapshot."
# Why a container does not start, by the kubelet's word for it.
_NOT_STARTED = {
    "InvalidImageName": "the name of the image is none: correct `--with image=...`.",
    "ErrImageNeverPull": "the node does not have the image, and must not pull it.",
    "CreateContainerConfigError": (
        "the container can't be made: {message}. What is missing must be there in this namespace."
    ),
    "CreateContainerError": "the container can't be made: {message}.",
    "RunContainerError": (
        "the container can't be started: {message}. The image needs `python` and syrtos"
        " (examples/kubernetes/Dockerfile)."
    ),
}
_PULLS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable")
# Why a container has not begun to run, by the reason of its end.
_NEVER_RAN = ("StartError", "ContainerCannotRun")
# What to do where the scheduler finds no node, by a part of its message.
_UNSCHEDULABLE = {
    r"persistentvolumeclaim|PersistentVolumeClaim": (
        "Create the claim (`kubectl get pvc` lists them), or name another with `--with claim=`."
    ),
    r"nvidia\.com/gpu": (
        "Ask for fewer GPUs (`-n`, `--gpus-per-worker`), or wait until some are free."
    ),
    r"Insufficient memory": "Ask for less (`--with memory=`), or wait until some is free.",
    r"Insufficient cpu": "Ask for fewer (`--with cpu=`), or wait until some are free.",
    r"affinity|node selector": (
        "No node has the labels of `--with node-selector=` (`kubectl get nodes --show-labels`)."
    ),
    r"taint": "Nodes keep pods off by a taint: `--with tolerate=NAME` lets these on.",
}
_DISRUPTED = {
    "PreemptionByScheduler": "made room for a pod of higher priority",
    "DeletionByTaintManager": (
        "was deleted, since its node is not reachable any more or was taken out of service"
    ),
    "EvictionByEvictionAPI": "was evicted, as when a node is drained",
    "DeletionByPodGC": "was deleted with its node",
    "TerminationByKubelet": "was ended by its node, which shuts down or is short of memory or disk",
}


@dataclasses.dataclass(frozen=True)
class RunObjects:
    """The objects of a run, as Kubernetes shows them.

    Attributes:
        kind: the kind of the object that owns the pods.
        name: its name.
        owner: the object; None if there is none.
        pods: the pods.
        events: the events of all of these, the oldest first.
    """

    kind: Kind
    name: str
    owner: Object | None
    pods: Sequence[Object]
    events: Sequence[Object] = ()


def host_of(pod: Object) -> int:
    """Returns the number of a pod among those of its run."""
    meta = pod["metadata"]
    text = str(meta.get("annotations", {}).get(INDEX, meta.get("labels", {}).get(INDEX, "0")))
    return int(text) if text.isdigit() else 0


def state_of(seen: RunObjects) -> RunState:
    """Returns the state of a run."""
    if seen.owner is None:
        return RunState(
            "stopped", f"the cluster has no {seen.kind} {seen.name} (any more). {GOES_ON}", STOPPED
        )
    conditions = {
        each["type"]: each
        for each in _status(seen.owner).get("conditions", ())
        if each["status"] == "True"
    }
    if "Complete" in conditions or "Completed" in conditions:
        return RunState("finished", code=0)
    if "Failed" in conditions:
        return _state_of_failure(seen, conditions["Failed"])
    if "deletionTimestamp" in seen.owner["metadata"]:
        # Its pods have some time to save their state.
        return RunState("running")
    if "Suspended" in conditions:
        return RunState("waiting", _describe_suspension(seen, conditions["Suspended"]))
    if why := next(_troubles(seen), ""):
        return RunState("waiting", why)
    phases = [_status(pod).get("phase") for pod in seen.pods]
    return RunState(
        "running"
        if any(phase in ("Running", "Succeeded", "Failed") for phase in phases)
        else "waiting"
    )


def _status(thing: Object) -> Object:
    return thing.get("status") or {}


# -- runs that wait --------------------------------------------------------------------------------


def _describe_suspension(seen: RunObjects, condition: Object) -> str:
    queue = (seen.owner or {})["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
    if not queue:
        return f"{seen.kind} {seen.name} is suspended: {_sentence(condition.get('message', ''))}"
    return (
        f"{seen.kind} {seen.name} waits in the queue {queue}: `kubectl get workloads` says what"
        " for."
    )


def _troubles(seen: RunObjects) -> Iterator[str]:
    """Yields why pods are not there or do not run."""
    for pod in sorted(seen.pods, key=host_of):
        if _status(pod).get("phase") == "Pending" and (why := _waits(pod, seen.events)):
            yield f"pod {pod['metadata']['name']} waits: {why}"
    if not seen.pods:
        yield from (why for event in reversed(seen.events) if (why := _not_created(event)))


def _waits(pod: Object, events: Sequence[Object]) -> str:
    status = _status(pod)
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return unschedulable(condition.get("message", ""))
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting", {})
        if why := _not_started(waiting, container.get("image", "")):
            return why
    mine = [each for each in events if _is_about(each, pod["metadata"]["name"])]
    return next((why for event in reversed(mine) if (why := _not_mounted(event))), "")


def unschedulable(message: str) -> str:
    """Returns why no node takes a pod, and what to do, from the scheduler's message."""
    # After it the scheduler says why preemption would not help.
    told = message.partition(" preemption:")[0]
    if "SchedulingGated" in message or not told:
        return "it is not admitted yet."
    meant = next((what for pattern, what in _UNSCHEDULABLE.items() if re.search(pattern, told)), "")
    return f"{_sentence(told)} {meant}".rstrip()


def _not_started(waiting: Object, image: str) -> str:
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _PULLS:
        refused = re.search(r"unauthorized|denied|authentication|forbidden", message, re.IGNORECASE)
        what = (
            "The registry refuses: name the secret with its password (`--with pull-secret=`), or"
            " correct the name."
            if refused
            else (
                "Correct `--with image=...`, push the image, or name the secret with the registry's"
                " password (`--with pull-secret=`)."
            )
        )
        return f"the image {image} can't be pulled ({reason}). {what}"
    if reason in _NOT_STARTED:
        return _NOT_STARTED[reason].format(message=message.rstrip("."))
    return ""


def _is_about(event: Object, name: str) -> bool:
    return event.get("involvedObject", {}).get("name") == name


def _not_mounted(event: Object) -> str:
    reason, message = event.get("reason", ""), event.get("message", "")
    if reason not in ("FailedMount", "FailedAttachVolume"):
        return ""
    many = "Multi-Attach" in message
    what = (
        " The claim allows one node (ReadWriteOnce): pods on several need one with ReadWriteMany."
        if many
        else ""
    )
    return f"a volume can't be mounted: {_sentence(message)}{what}"


def _not_created(event: Object) -> str:
    """Returns why a controller could not create pods or Jobs."""
    if event.get("reason") not in (
        "FailedCreate",
        "JobCreationFailed",
        "ReplicatedJobsCreationFailed",
    ):
        return ""
    return describe_refusal(event.get("message", ""))


def describe_refusal(message: str) -> str:
    """Returns why the cluster refuses an object, and what to do, from the API server's message."""
    if "exceeded quota" in message:
        told = message[message.index("exceeded quota") :]
        return (
            f"the namespace's quota is exhausted ({told.rstrip('.')}). Ask for less, wait until"
            " other runs have ended, or ask for a larger quota (`kubectl describe quota`)."
        )
    if "must specify" in message:
        return (
            f"the namespace's quota wants limits: {_sentence(message)} Give `--with memory=` and"
            " `--with cpu=`."
        )
    if "violates PodSecurity" in message:
        return (
            f"the namespace's security standard refuses the pods: {_sentence(message)} `--with"
            " user=1000` runs them without root's rights."
        )
    return f"the cluster refuses: {_sentence(message)}"


# -- runs that have failed -------------------------------------------------------------------------


def _state_of_failure(seen: RunObjects, condition: Object) -> RunState:
    """Returns the state of a failed run, with the cause that a person can do something about."""
    pods = sorted(seen.pods, key=host_of)
    codes = [code for pod in pods if (code := _exit_code(pod))]
    code = codes[0] if codes else 1
    if why := next((why for pod in pods if (why := _describe_death(pod))), ""):
        return RunState("failed", why, code)
    if condition.get("reason") == "DeadlineExceeded":
        return RunState(
            "failed",
            f"{seen.kind} {seen.name} has run for longer than its deadline allows. {GOES_ON}",
            code,
        )
    if why := next((why for pod in pods if (why := _describe_disruption(pod))), ""):
        return RunState("stopped", f"{why} {GOES_ON}", code)
    if codes and set(codes) == {STOPPED}:
        return RunState("stopped", f"its state is saved. {GOES_ON}", STOPPED)
    if not codes:
        return RunState(
            "failed",
            f"{seen.kind} {seen.name} has failed: {_sentence(condition.get('message', ''))}",
            code,
        )
    first = min((pod for pod in pods if _exit_code(pod)), key=_end)
    name = first["metadata"]["name"]
    return RunState(
        "failed",
        f"pod {name} has ended first, with exit code {_exit_code(first)}: its output says why.",
        code,
    )


def _terminated(pod: Object) -> Object:
    """Returns what is told of the end of the pod's container."""
    for container in _status(pod).get("containerStatuses", ()):
        if container.get("name", CONTAINER) == CONTAINER:
            return (
                container.get("state", {}).get("terminated")
                or container.get("lastState", {}).get("terminated")
                or {}
            )
    return {}


def _exit_code(pod: Object) -> int:
    return int(_terminated(pod).get("exitCode", 0))


def _end(pod: Object) -> str:
    # RFC 3339, whose order is that of time; `~` comes last
    return str(_terminated(pod).get("finishedAt", "~"))


def _describe_death(pod: Object) -> str:
    """Returns why a pod has died, if the script or its author could avoid that; else nothing."""
    name, status, terminated = pod["metadata"]["name"], _status(pod), _terminated(pod)
    if terminated.get("reason") == "OOMKilled":
        return (
            f"pod {name} has used more memory than it may (OOMKilled; /dev/shm counts too): ask for"
            " more (`--with memory=16Gi`), or put fewer workers in each pod. " + GOES_ON
        )
    if terminated.get("reason") in _NEVER_RAN:
        return (
            f"the container of pod {name} can't be started:"
            f" {_sentence(terminated.get('message', ''))} The image needs `python` and syrtos"
            " (examples/kubernetes/Dockerfile)."
        )
    if status.get("reason") == "Evicted":
        return (
            f"pod {name} was evicted: {_sentence(status.get('message', ''))} Ask for what it needs"
            f" (`--with memory=`). {GOES_ON}"
        )
    if status.get("reason") == "DeadlineExceeded":
        return f"pod {name} has run for longer than its deadline allows. {GOES_ON}"
    return ""


def _describe_disruption(pod: Object) -> str:
    for condition in _status(pod).get("conditions", ()):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            reason = condition.get("reason", "")
            return (
                f"pod {pod['metadata']['name']}"
                f" {_DISRUPTED.get(reason, f'was disrupted ({reason})')}."
            )
    return ""


def _sentence(message: str) -> str:
    """Returns a message with one full stop at its end."""
    text = " ".join(message.split())
    return f"{text.rstrip('.')}." if text else "nothing more is known."
