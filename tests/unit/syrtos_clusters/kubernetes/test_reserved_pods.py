"""Pods are held for a job by an emulated API server (`kubernetes_api`); a test says what becomes of them."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes")

from kubernetes_api import Emulated, emulated

from syrtos.engines.reservation import NodeRequest
from syrtos.errors import ConfigurationError, LaunchError
from syrtos_clusters.kubernetes import ENGINE, reserved_pods

LABEL = "batch.kubernetes.io/job-name"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    monkeypatch.setattr(reserved_pods, "_LOOK", 0.02)
    monkeypatch.setattr(reserved_pods, "_EVERY", 0.05)
    with emulated(tmp_path) as found:
        monkeypatch.setenv("KUBECONFIG", str(found.kube_config))
        yield found


class Requester:
    """Notes what it is told."""

    def __init__(self, is_over: Callable[[], bool] = lambda: False) -> None:
        self.is_over = is_over
        self.told: list[str] = []
        self.lost: list[tuple[str, bool]] = []
        self.heard = threading.Event()

    def tell(self, why: str) -> None:
        self.told.append(why)

    def note_loss(self, why: str, again: bool = True) -> None:
        self.lost.append((why, again))
        self.heard.set()


def wanted(folder: Path, count: int = 2, **values: str) -> NodeRequest:
    given = {"image": "i", "claim": f"home:{folder}", "cpu": "4", **values}
    return NodeRequest(
        job="Digits-1",
        count=count,
        workers=2,
        gpus=1,
        values=given,
        python="/opt/python",
        folder=folder,
    )


def job_of(server: Emulated) -> str:
    (name,) = [name for plural, name in server.objects if plural == "jobs"]
    return name


def add_ready(server: Emulated, job: str, host: int) -> str:
    pod = server.add_pod(job, host, label=LABEL)
    ready = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "podIP": f"10.0.0.{host}", "conditions": [ready]}
    server.put("pods", {**server.objects["pods", pod], "status": status})
    return pod


def let_pods_come(server: Emulated, count: int) -> threading.Thread:
    def come() -> None:
        while not any(plural == "jobs" for plural, _ in list(server.objects)):
            time.sleep(0.01)
        for host in range(count):
            add_ready(server, job_of(server), host)

    thread = threading.Thread(target=come, daemon=True)
    thread.start()
    return thread


def test_pods_are_held_and_given_back(server: Emulated, tmp_path: Path) -> None:
    let_pods_come(server, 2)
    with ENGINE.reserve(wanted(tmp_path), Requester()) as held:
        nodes = held.nodes()
        job = server.objects["jobs", job_of(server)]
        assert [(node.address, node.cpus) for node in nodes] == [("10.0.0.0", 4), ("10.0.0.1", 4)]
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["command"][0] == "/opt/python"
        assert Path(container["command"][-1]).exists(), "the file that the pods look at"
        assert job["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == os.getuid()
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert job["spec"]["completions"] == 2
        words = [*shlex.split(held.command), nodes[1].name, "echo", "there"]
        done = subprocess.run(words, capture_output=True, check=False)
        assert done.stdout == b"there\n", done.stderr
    assert "Job" not in server.names()


def test_a_pod_that_is_lost_is_no_node_until_another_has_its_place(
    server: Emulated, tmp_path: Path
) -> None:
    let_pods_come(server, 2)
    requester = Requester()
    with ENGINE.reserve(wanted(tmp_path), requester) as held:
        first, second = held.nodes()
        server.end_pod(second.name, 137)
        assert held.nodes() == (first,)
        name = add_ready(server, job_of(server), 1)
        assert [node.name for node in held.nodes()] == [first.name, name]
        assert held.why_taken_back() == ("", True)
        server.refusals["GET", "pods"] = (500, "etcd is away")
        assert held.nodes() == (), "what is not known is no node"
    assert not requester.lost


@pytest.mark.parametrize(
    ("happens", "why", "again"),
    [
        (lambda server, job: server.objects.pop(("jobs", job)), "was deleted", False),
        (
            lambda server, job: server.objects["jobs", job]["spec"].update(suspend=True),
            "has suspended the Job",
            True,
        ),
        (
            lambda server, job: server.end_run(
                "jobs", job, "Failed", "DeadlineExceeded", "Job was active too long"
            ),
            "has ended the pods",
            True,
        ),
    ],
)
def test_it_is_told_that_the_pods_are_taken_back(
    happens: Callable[[Emulated, str], object],
    why: str,
    again: bool,
    server: Emulated,
    tmp_path: Path,
) -> None:
    let_pods_come(server, 2)
    requester = Requester()
    with ENGINE.reserve(wanted(tmp_path), requester):
        happens(server, job_of(server))
        assert requester.heard.wait(20.0)
    assert len(requester.lost) == 1
    assert why in requester.lost[0][0]
    assert requester.lost[0][1] is again


def test_what_pods_wait_for_is_told(server: Emulated, tmp_path: Path) -> None:
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    requester = Requester()
    requester.is_over = lambda: bool(requester.told)

    def come() -> None:
        let_pods_come(server, 1).join()
        name = server.add_pod(job_of(server), 1, "Pending", LABEL)
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
        }
        server.put(
            "pods",
            {
                **server.objects["pods", name],
                "status": {"phase": "Pending", "conditions": [condition]},
            },
        )

    threading.Thread(target=come, daemon=True).start()
    with (
        pytest.raises(LaunchError, match="Gave up waiting"),
        ENGINE.reserve(wanted(tmp_path), requester),
    ):
        raise AssertionError("it has no pods")
    assert message in requester.told[0]
    assert "Job" not in server.names()


def test_a_job_that_is_deleted_while_it_waits_is_over(server: Emulated, tmp_path: Path) -> None:
    def delete() -> None:
        let_pods_come(server, 1).join()
        server.objects.pop(("jobs", job_of(server)))

    threading.Thread(target=delete, daemon=True).start()
    requester = Requester()
    with (
        pytest.raises(LaunchError, match="was deleted"),
        ENGINE.reserve(wanted(tmp_path), requester),
    ):
        raise AssertionError("it has no pods")
    assert [again for _, again in requester.lost] == [False]


def test_the_pods_of_a_runner_that_was_killed_are_given_back_by_the_next(
    server: Emulated, tmp_path: Path
) -> None:
    server.put("jobs", {"metadata": {"name": "digits-1-abcdef"}, "spec": {}})
    (tmp_path / "pods.job").write_text("digits-1-abcdef")

    def come() -> None:
        while ("jobs", "digits-1-abcdef") in server.objects:
            time.sleep(0.01)
        let_pods_come(server, 2)

    threading.Thread(target=come, daemon=True).start()
    with ENGINE.reserve(wanted(tmp_path), Requester()):
        assert job_of(server) != "digits-1-abcdef"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "needs `--with image="),
        ({"image": "i"}, "needs `--with claim="),
        ({"image": "i", "claim": "home"}, "is written NAME:/path"),
        (
            {"image": "i", "claim": "home:/home", "kind": "JobSet"},
            "means nothing to syrtos serve --on kubernetes",
        ),
        ({"image": "i", "claim": "home:/home", "memory": "lots"}, "must be an amount"),
    ],
)
def test_values_of_a_service_are_checked(values: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        ENGINE.check_jobs(values)


def test_a_folder_that_no_claim_holds(server: Emulated, tmp_path: Path) -> None:
    request = wanted(tmp_path, claim="home:/elsewhere")
    with (
        pytest.raises(ConfigurationError, match=r"no claim is mounted above it"),
        ENGINE.reserve(request, Requester()),
    ):
        raise AssertionError("it has pods")
