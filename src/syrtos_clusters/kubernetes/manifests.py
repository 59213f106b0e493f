"""The objects of a run: pure functions from what it asks for to dictionaries, and to YAML.

A run is one object that owns its pods (a JobSet, a Job or a TrainJob), and what these need: a
Secret, a ConfigMap with the script, a Service.
"""

from __future__ import annotations

from typing import Any

import yaml

from syrtos.engines.engine import STOPPED
from syrtos_clusters.kubernetes import pods
from syrtos_clusters.kubernetes.pods import CONTAINER, SECRET_KEY, Object
from syrtos_clusters.kubernetes.request import KubernetesRun

# In place of the secret in YAML that is printed: a person puts one of their own there, since what
# is printed may be kept in git.
PLACEHOLDER = "PUT-A-RANDOM-SECRET-HERE"
QUEUE = "kueue.x-k8s.io/queue-name"
INSTANCE = "app.kubernetes.io/instance"
# The label of a run's pods by the kind of the object that owns them; a TrainJob makes a JobSet of
# its own name.
POD_LABELS = {
    "Job": "batch.kubernetes.io/job-name",
    "JobSet": "jobset.sigs.k8s.io/jobset-name",
    "TrainJob": "jobset.sigs.k8s.io/jobset-name",
}
# the name of a JobSet's only Job, and of that of Kubeflow Trainer's runtimes
_REPLICATED = "node"
_DAY = 24 * 3600


def objects(request: KubernetesRun, secret: str) -> list[Object]:
    """Returns the objects in the order in which they are created; the last owns the pods."""
    made = [_secret(request, secret)]
    if request.script:
        made.append(_config_map(request, *request.script))
    if request.kind == "Job":
        made += [_service(request), _job(request)]
    else:
        made.append(_job_set(request) if request.kind == "JobSet" else _train_job(request))
    return made


def text(request: KubernetesRun) -> str:
    """Returns the objects as YAML for `kubectl apply -f -`, without a secret."""
    names = ", ".join(f"{each['kind']} {request.name}" for each in objects(request, PLACEHOLDER))
    replace = f'sed "s/{PLACEHOLDER}/$(openssl rand -hex 32)/"'
    lines = [
        f"# {names}.",
        (
            "# Whoever knows the secret can join the run: put in one of your own, e.g. by"
            f" {replace} | kubectl apply -f -"
        ),
        *(f"# {note}" for note in notes(request)),
    ]
    documents = [
        yaml.dump(each, Dumper=_Dumper, sort_keys=False, width=160)
        for each in objects(request, PLACEHOLDER)
    ]
    return "\n".join(lines) + "\n---\n" + "---\n".join(documents)


def notes(request: KubernetesRun) -> list[str]:
    """Returns sentences about what a person may not expect of the run."""
    found: list[str] = []
    if not request.is_kept:
        found.append(
            f"The run directory {request.run_dir} is lost with the pods: a run that is preempted"
            " begins anew. Keep it in a PersistentVolumeClaim (`--with claim=NAME:/path`)."
        )
    if request.kind == "Job":
        found.append(
            "A Job is not started again as a group: after a preemption or the loss of a pod it"
            " fails, and the same command goes on from the last snapshot. A JobSet restarts by"
            " itself."
        )
    if request.kind == "TrainJob":
        found.append(
            "A TrainJob is started again after a preemption only if its runtime says so"
            " (failurePolicy of the runtime's JobSet); else the same command goes on from the last"
            " snapshot."
        )
    return found


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, so that a script can be read.

    It repeats objects instead of writing `&id001`.
    """

    def ignore_aliases(self, data: Any) -> bool:
        """Returns whether an object is written out each time: always."""
        return True


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", value, style="|" if "\n" in value else None
    )


_Dumper.add_representer(str, _represent_text)


# -- what pods need --------------------------------------------------------------------------------


def _metadata(request: KubernetesRun) -> Object:
    found: Object = {"name": request.name, "labels": labels(request)}
    if namespace := request.values.get("namespace"):
        found["namespace"] = namespace
    return found


def labels(request: KubernetesRun) -> dict[str, str]:
    """Returns the labels of all objects of the run."""
    return {"app.kubernetes.io/name": "syrtos", INSTANCE: request.name}


def _metadata_with_queue(request: KubernetesRun) -> Object:
    """Returns the metadata of an object that Kueue admits where a queue is named."""
    found = _metadata(request)
    if queue := request.values.get("queue"):
        found["labels"] = {**found["labels"], QUEUE: queue}
    return found


def _secret(request: KubernetesRun, secret: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(request),
        "stringData": {SECRET_KEY: secret},
    }


def _config_map(request: KubernetesRun, name: str, script: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(request),
        "data": {name: script},
    }


def _service(request: KubernetesRun) -> Object:
    """Returns the headless service that gives the pods of a Job names."""
    # They have names before they are ready, since they meet to become it.
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {INSTANCE: request.name},
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(request), "spec": spec}


# -- what owns pods --------------------------------------------------------------------------------


def _job_spec(request: KubernetesRun, pod: Object) -> Object:
    """Returns the spec of an Indexed Job that ends as a whole when a pod does.

    The spec tells preemptions from failures.
    """
    # The first rule that matches counts. Both end the Job with the reason PodFailurePolicy, which a
    # JobSet's rule knows.
    rules = [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [STOPPED]},
        },
    ]
    return {
        "completionMode": "Indexed",
        "completions": request.pods,
        "parallelism": request.pods,
        "backoffLimit": 0,
        # none comes while the one before it still ends, and writes its state
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": rules},
        "template": {"metadata": {"labels": labels(request)}, "spec": pod},
    }


def _job(request: KubernetesRun) -> Object:
    env = pods.environment(request, f"{request.name}-0.{request.name}")
    pod = pods.template(request, env) | {"subdomain": request.name}
    spec = _job_spec(request, pod) | {"ttlSecondsAfterFinished": request.number("ttl", _DAY)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata_with_queue(request),
        "spec": spec,
    }


def holding_job(request: KubernetesRun) -> Object:
    """Returns an Indexed Job whose pods are held for a job of `syrtos serve`.

    Kubernetes replaces a lost pod.
    """
    spec = {
        "completionMode": "Indexed",
        "completions": request.pods,
        "parallelism": request.pods,
        # `syrtos serve` counts how often a job may lose nodes
        "backoffLimit": 2**31 - 1,
        # of pods whose lease has ended, since the service's machine is gone
        "ttlSecondsAfterFinished": _DAY,
        "template": {
            "metadata": {"labels": labels(request)},
            "spec": pods.template(request, pods.variables(request)),
        },
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata_with_queue(request),
        "spec": spec,
    }


def _job_set(request: KubernetesRun) -> Object:
    pod = pods.template(
        request, pods.environment(request, f"{request.name}-{_REPLICATED}-0-0.{request.name}")
    )
    rule = {
        "name": "stopped",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [_REPLICATED]},
        "failurePolicy": {
            "maxRestarts": request.number("restarts", 3),
            # the run directory has one launcher at a time
            "restartStrategy": "BlockingRecreate",
            "rules": [rule],
        },
        "ttlSecondsAfterFinished": request.number("ttl", _DAY),
        "replicatedJobs": [
            {"name": _REPLICATED, "replicas": 1, "template": {"spec": _job_spec(request, pod)}}
        ],
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata_with_queue(request),
        "spec": spec,
    }


def _train_job(request: KubernetesRun) -> Object:
    """Returns a TrainJob, whose runtime gives the pods names and torchrun's variables (PET_*)."""
    # A patch can't set the container's working folder.
    there = ["env", f"--chdir={request.workdir}"] if request.workdir else []
    container = {
        "name": CONTAINER,
        "volumeMounts": pods.volume_mounts(request),
        "securityContext": pods.rights(),
    }
    pod: Object = {
        "terminationGracePeriodSeconds": request.number("grace", 60),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}, **pods.user(request)},
        **pods.placement(request),
        "volumes": pods.volumes(request),
        "containers": [container],
    }
    job = {"name": _REPLICATED, "template": {"spec": {"template": {"spec": pod}}}}
    spec = {
        "runtimeRef": {
            "kind": "ClusterTrainingRuntime",
            "name": request.values.get("runtime", "torch-distributed"),
        },
        "trainer": {
            "image": request.image,
            "command": [*there, *request.command],
            "numNodes": request.pods,
            "numProcPerNode": request.slots,
            "resourcesPerNode": pods.resources(request),
            "env": pods.environment(request),
        },
        "runtimePatches": [
            {
                "manager": "syrtos/run",
                "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
            }
        ],
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata_with_queue(request),
        "spec": spec,
    }
