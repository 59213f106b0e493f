"""What Kubernetes tells of a run becomes one sentence with what to do. Messages are those of real clusters."""

from __future__ import annotations

from typing import Any

import pytest

from syrtos_clusters.kubernetes.diagnosis import RunObjects, state_of


def owner(*conditions: tuple[str, str, str], **labels: str) -> dict[str, Any]:
    told = [
        {"type": kind, "status": "True", "reason": reason, "message": message}
        for kind, reason, message in conditions
    ]
    return {"metadata": {"name": "digits", "labels": labels}, "status": {"conditions": told}}


def pod(host: int = 0, phase: str = "Running", **status: Any) -> dict[str, Any]:
    annotations = {"batch.kubernetes.io/job-completion-index": str(host)}
    return {
        "metadata": {"name": f"digits-{host}-x", "annotations": annotations},
        "status": {"phase": phase, **status},
    }


def waits(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(0, "Pending", containerStatuses=[{"name": "node", "image": "r/i:1", "state": state}])


def ended(
    code: int, host: int = 0, reason: str = "Error", at: str = "1", **status: Any
) -> dict[str, Any]:
    state = {
        "terminated": {
            "exitCode": code,
            "reason": reason,
            "finishedAt": at,
            "message": "exec: python",
        }
    }
    return pod(
        host,
        "Failed" if code else "Succeeded",
        containerStatuses=[{"name": "node", "state": state}],
        **status,
    )


def condition(
    kind: str, reason: str = "", message: str = "", status: str = "True"
) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def event(name: str, reason: str, message: str) -> dict[str, Any]:
    return {"involvedObject": {"name": name}, "reason": reason, "message": message}


def unscheduled(message: str) -> dict[str, Any]:
    return pod(
        0, "Pending", conditions=[condition("PodScheduled", "Unschedulable", message, "False")]
    )


def told(
    pods: list[Any], events: list[Any] | None = None, kind: Any = "JobSet", of: Any = None
) -> tuple[str, str]:
    state = state_of(RunObjects(kind, "digits", of or owner(), pods, events or []))
    return state.phase, state.why


QUOTA = (
    'Error creating: pods "digits-0" is forbidden: exceeded quota: team, requested: requests.cpu=2, used: requests.cpu=9, '
    "limited: requests.cpu=10"
)


@pytest.mark.parametrize(
    ("seen", "parts"),
    [
        (
            unscheduled(
                "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available"
            ),
            (
                "pod digits-0-x waits: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
                "fewer GPUs",
            ),
        ),
        (unscheduled("0/3 nodes are available: 3 Insufficient memory."), ("--with memory=",)),
        (unscheduled("0/3 nodes are available: 3 Insufficient cpu."), ("--with cpu=",)),
        (
            unscheduled("0/3 nodes are available: 3 node(s) had untolerated taint {spot: true}."),
            ("--with tolerate=",),
        ),
        (
            unscheduled(
                "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
            ),
            ("--with node-selector=",),
        ),
        (
            unscheduled('persistentvolumeclaim "runs" not found.'),
            ("kubectl get pvc", "--with claim="),
        ),
        (unscheduled(""), ("not admitted yet",)),
        (
            waits("ImagePullBackOff", 'Back-off pulling image "r/i:1": manifest unknown'),
            ("the image r/i:1 can't be pulled (ImagePullBackOff)", "push the image"),
        ),
        (
            waits("ErrImagePull", "failed to authorize: 401 Unauthorized"),
            ("registry refuses", "--with pull-secret="),
        ),
        (waits("InvalidImageName", "couldn't parse image name"), ("correct `--with image=...`",)),
        (
            waits("CreateContainerConfigError", 'secret "digits" not found'),
            ('can\'t be made: secret "digits" not found.', "in this namespace"),
        ),
    ],
)
def test_a_pod_that_waits(seen: dict[str, Any], parts: tuple[str, ...]) -> None:
    phase, why = told([pod(1), seen])
    assert phase == "waiting"
    for part in parts:
        assert part in why


def test_pods_that_could_not_be_made() -> None:
    phase, why = told([], [event("digits-node-0", "FailedCreate", QUOTA)])
    assert phase == "waiting"
    assert (
        "the namespace's quota is exhausted (exceeded quota: team, requested: requests.cpu=2" in why
    )
    assert "kubectl describe quota" in why


def test_a_volume_of_one_node() -> None:
    message = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) digits-1'
    phase, why = told(
        [waits("ContainerCreating")],
        [
            event("digits-1-x", "FailedMount", "?"),
            event("digits-0-x", "FailedAttachVolume", message),
        ],
    )
    assert phase == "waiting"
    assert "ReadWriteMany" in why


def test_one_that_merely_starts() -> None:
    assert told([waits("ContainerCreating")]) == ("waiting", "")
    assert told([]) == ("waiting", "")


def test_one_that_runs() -> None:
    assert told([pod(0), pod(1)]) == ("running", "")


def test_kueue_has_not_admitted_it() -> None:
    suspended = owner(
        ("Suspended", "SuspendedJobs", "jobset is suspended"),
        **{"kueue.x-k8s.io/queue-name": "team"},
    )
    phase, why = told([], of=suspended)
    assert phase == "waiting"
    assert "waits in the queue team: `kubectl get workloads`" in why


def test_the_end() -> None:
    assert told([ended(0)], of=owner(("Completed", "AllJobsCompleted", "")))[0] == "finished"
    assert told([ended(0)], of=owner(("Complete", "", "")), kind="Job")[0] == "finished"


FAILED = owner(("Failed", "FailedJobs", "jobset failed due to one or more job failures"))


@pytest.mark.parametrize(
    ("pods", "phase", "parts", "code"),
    [
        (
            [ended(1, 0, at="2"), ended(137, 1, "OOMKilled")],
            "failed",
            ("digits-1-x", "OOMKilled", "--with memory="),
            1,
        ),
        (
            [pod(0, "Failed", reason="Evicted", message="The node was low on resource: memory.")],
            "failed",
            ("was evicted: The node was low on resource: memory.", "goes on"),
            1,
        ),
        ([pod(0, "Failed", reason="DeadlineExceeded")], "failed", ("longer than its deadline",), 1),
        (
            [ended(128, 0, "StartError")],
            "failed",
            ("can't be started: exec: python.", "needs `python`"),
            128,
        ),
        ([ended(75), ended(75, 1)], "stopped", ("its state is saved", "goes on"), 75),
        (
            [
                ended(75),
                ended(75, 1, conditions=[condition("DisruptionTarget", "PreemptionByScheduler")]),
            ],
            "stopped",
            ("digits-1-x made room for a pod of higher priority",),
            75,
        ),
        (
            [ended(1, 0, at="2026-11-25T10:00:02Z"), ended(3, 1, at="2026-11-25T10:00:01Z")],
            "failed",
            ("pod digits-1-x has ended first, with exit code 3",),
            1,
        ),
        ([], "failed", ("jobset failed due to one or more job failures.",), 1),
    ],
)
def test_runs_that_have_failed(
    pods: list[Any], phase: str, parts: tuple[str, ...], code: int
) -> None:
    state = state_of(RunObjects("JobSet", "digits", FAILED, pods))
    assert (state.phase, state.code) == (phase, code)
    for part in parts:
        assert part in state.why


def test_a_deadline_of_the_job() -> None:
    failed = owner(("Failed", "DeadlineExceeded", "Job was active longer than specified deadline"))
    assert "longer than its deadline allows" in told([], of=failed, kind="Job")[1]


def test_one_that_was_deleted() -> None:
    state = state_of(RunObjects("Job", "digits", None, []))
    assert (state.phase, state.code) == ("stopped", 75)
    assert "has no Job digits" in state.why
