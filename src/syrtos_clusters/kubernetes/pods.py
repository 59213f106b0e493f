"""The pods of a run: their container, its variables, memory, claims and rights."""

from __future__ import annotations

from typing import Any

from syrtos_clusters.kubernetes.request import PORT, SCRATCH, SCRIPT_FOLDER, KubernetesRun

Object = dict[str, Any]

# The name of the container, which is also that of Kubeflow Trainer's runtimes.
CONTAINER = "node"
# The number of a pod among those of an Indexed Job (Kubernetes, "Jobs", Completion mode).
INDEX = "batch.kubernetes.io/job-completion-index"
# In a Secret: what the processes of a run prove to know.
SECRET_KEY = "secret"


def template(request: KubernetesRun, env: list[Object]) -> Object:
    """Returns the spec of a pod, whose container has the variables ``env``."""
    container: Object = {
        "name": CONTAINER,
        "image": request.image,
        "command": list(request.command),
        "env": env,
        "ports": [{"name": "syrtos", "containerPort": PORT}],
        "resources": resources(request),
        "volumeMounts": volume_mounts(request),
        "securityContext": rights(),
    }
    if request.workdir:
        container["workingDir"] = request.workdir
    return {
        # podFailurePolicy allows no other; a container alone can't come back into a world
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": request.number("grace", 60),
        # They would be variables of all services of the namespace, whose names are anyone's.
        "enableServiceLinks": False,
        "automountServiceAccountToken": "service-account" in request.values,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}, **user(request)},
        **placement(request),
        "containers": [container],
        "volumes": volumes(request),
    }


def environment(request: KubernetesRun, first: str = "") -> list[Object]:
    """Returns the variables of the container of a run's pod.

    Args:
        request: the run.
        first: the name under which the other pods find the first; empty: another system says where
            a pod is among them.
    """
    source = {"secretKeyRef": {"name": request.name, "key": SECRET_KEY}}
    env: list[Object] = [{"name": "SYRTOS_SECRET", "valueFrom": source}]
    if first:
        index = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
        env += [
            {"name": "SYRTOS_NODES", "value": str(request.pods)},
            {"name": "SYRTOS_NODE_RANK", "valueFrom": index},
            {"name": "SYRTOS_FIRST", "value": f"{first}:{PORT}"},
            {"name": "SYRTOS_SLOTS", "value": str(request.slots)},
        ]
    return env + variables(request)


def variables(request: KubernetesRun) -> list[Object]:
    """Returns the variables that `--with env=` gives."""
    return [{"name": name, "value": value} for name, value in request.variables().items()]


def resources(request: KubernetesRun) -> Object:
    """Returns what a pod asks for."""
    # Of GPUs and memory a pod must get as much as its limit; of processors it has none, since a
    # limit throttles.
    memory = request.quantity("memory")
    limits = {"memory": memory} if memory else {}
    if request.gpus:
        limits["nvidia.com/gpu"] = str(request.gpus)
    found = {"requests": {"cpu": request.quantity("cpu", str(request.slots)), **limits}}
    return found | ({"limits": limits} if limits else {})


def volumes(request: KubernetesRun) -> list[Object]:
    """Returns the volumes: shared memory, claims, the script, and a folder to write into.

    The folder is added where there is no claim.
    """
    # snapshots and the exchange would fill more than the 64 MiB that a container has by itself
    shm: Object = {"medium": "Memory"}
    if size := request.quantity("shm"):
        shm["sizeLimit"] = size
    found: list[Object] = [{"name": "shm", "emptyDir": shm}]
    for number, mount in enumerate(request.mounts):
        found.append(
            {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": mount.claim}}
        )
    if request.script:
        found.append({"name": "script", "configMap": {"name": request.name}})
    if _needs_scratch(request):
        found.append({"name": "work", "emptyDir": {}})
    return found


def volume_mounts(request: KubernetesRun) -> list[Object]:
    """Returns where the container sees the volumes."""
    found: list[Object] = [{"name": "shm", "mountPath": "/dev/shm"}]
    found += [
        {"name": f"claim-{n}", "mountPath": mount.path} for n, mount in enumerate(request.mounts)
    ]
    if request.script:
        # By subPath: else the file is a link to a folder named after the moment, and each start of
        # the pods would look like another script.
        name = request.script[0]
        found.append(
            {
                "name": "script",
                "mountPath": f"{SCRIPT_FOLDER}/{name}",
                "subPath": name,
                "readOnly": True,
            }
        )
    if _needs_scratch(request):
        found.append({"name": "work", "mountPath": SCRATCH})
    return found


def _needs_scratch(request: KubernetesRun) -> bool:
    return any(folder.startswith(SCRATCH) for folder in (request.run_dir, request.workdir))


def rights() -> Object:
    """Returns what the container may do, as the restricted Pod Security Standard asks for."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def user(request: KubernetesRun) -> Object:
    """Returns the user that the pods run as; nothing where the image says it."""
    if "user" not in request.values:
        return {}
    number = request.number("user", 0)
    return {
        "runAsUser": number,
        "runAsNonRoot": number != 0,
        "fsGroup": number,
        # a volume of many files is not walked through at each start
        "fsGroupChangePolicy": "OnRootMismatch",
    }


def placement(request: KubernetesRun) -> Object:
    """Returns where pods may run, as whom, and by what secret their image is pulled."""
    found: Object = {}
    if account := request.values.get("service-account"):
        found["serviceAccountName"] = account
    if secret := request.values.get("pull-secret"):
        found["imagePullSecrets"] = [{"name": secret}]
    if labels := request.pairs("node-selector"):
        found["nodeSelector"] = labels
    if taints := request.values.get("tolerate"):
        found["tolerations"] = [_toleration(taint) for taint in taints.split(",")]
    return found


def _toleration(taint: str) -> Object:
    key, equals, value = taint.partition("=")
    return (
        {"key": key, "operator": "Equal", "value": value}
        if equals
        else {"key": key, "operator": "Exists"}
    )
