"""A service whose jobs run on a real Slurm and on a real Ray cluster of three nodes: SDK v3 trains there as on one machine.

Kubernetes is an emulation (`pod_cluster`), with pods that are namespaces: no real cluster is at hand.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pod_cluster
import pytest
import ray_cluster
import slurm
from sdks import (
    HYPERPARAMETERS,
    SOURCE,
    Ran,
    Service,
    needs,
    same_weights,
    serving,
    steps,
    unpacked,
)

pytestmark = [needs("v3"), pytest.mark.slow, pytest.mark.timeout(900)]

AT_ONCE = ["Starting", "Downloading", "Training", "Uploading", "Completed"]


@pytest.fixture(scope="module")
def nodes_of_slurm() -> Iterator[slurm.Slurm]:
    if reason := slurm.missing():
        pytest.skip(reason)
    with slurm.cluster(nodes=3) as found:
        yield found


@pytest.fixture(scope="module")
def on_slurm(
    nodes_of_slurm: slurm.Slurm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    variables = {"SLURM_CONF": str(nodes_of_slurm.folder / "slurm.conf")}
    with serving(
        tmp_path_factory.mktemp("slurm"), ("--on", "slurm", "--with", "time=20"), variables
    ) as found:
        yield found


@pytest.fixture(scope="module")
def nodes_of_ray() -> Iterator[ray_cluster.RayCluster]:
    if reason := ray_cluster.missing():
        pytest.skip(reason)
    with ray_cluster.cluster(3) as found:
        yield found


@pytest.fixture(scope="module")
def on_ray(
    nodes_of_ray: ray_cluster.RayCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    words = ("--on", "ray", "--with", f"address={nodes_of_ray.address}")
    with serving(tmp_path_factory.mktemp("ray"), words) as found:
        yield found


@pytest.fixture(scope="module")
def nodes_of_kubernetes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[pod_cluster.PodCluster]:
    if reason := pod_cluster.missing():
        pytest.skip(reason)
    with pod_cluster.cluster(tmp_path_factory.mktemp("pods")) as found:
        yield found


@pytest.fixture(scope="module")
def on_kubernetes(nodes_of_kubernetes: pod_cluster.PodCluster) -> Iterator[Service]:
    shared = nodes_of_kubernetes.machine.claim("home")
    words = ("--on", "kubernetes", "--with", "image=i", "--with", f"claim=home:{shared}")
    with serving(
        shared, words, {"KUBECONFIG": str(nodes_of_kubernetes.server.kube_config)}
    ) as found:
        yield found


def train(service: Service, digits: Path, folder: Path, script: str, name: str) -> Ran:
    """Trains on two instances with a ModelTrainer of SDK v3."""
    facts = {
        "source": str(SOURCE),
        "data": str(digits),
        "folder": str(folder),
        "code": {"entry_script": script},
    }
    ran = service.run("v3", "v3_train.py", **facts, name=name, hyperparameters=HYPERPARAMETERS)
    assert not ran.answer["error"], ran.answer["error"]
    return ran


def train_paced(
    service: Service, digits: Path, folder: Path, name: str, happens: Callable[[], None]
) -> Ran:
    """Trains slowly until something has happened in the middle, and then to the end."""

    # Ray starts nodes in the main thread only: so the SDK is in another
    with ThreadPoolExecutor(1) as executor:
        training = executor.submit(train, service, digits, folder, "paced.py", name)
        until(
            lambda: any(service.home.glob(f"jobs/{name}-*/attempt-1/ledger/epochs.jsonl")), training
        )
        happens()
        until(
            lambda: any(service.home.glob(f"jobs/{name}-*/attempt-2/ledger/epochs.jsonl")), training
        )
        for data in service.home.glob(f"jobs/{name}-*/instances/*/ml/input/data/train"):
            (data / "go").touch()
        ran = training.result()
    assert "has trained 600 steps" in ran.output
    return ran


def until(happens: Callable[[], bool], training: Future[Ran]) -> None:
    deadline = time.monotonic() + 200
    while not happens():
        assert not training.done(), training.result()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_two_nodes_of_slurm_train_as_one_world(
    on_slurm: Service, nodes_of_slurm: slurm.Slurm, digits: Path, plain_model: Path, tmp_path: Path
) -> None:
    ran = train(on_slurm, digits, tmp_path, "digits.py", "world")
    assert "algo-1 has trained" in ran.output
    assert "algo-2 has trained" in ran.output
    same_weights(unpacked(ran.answer["archive"], tmp_path / "model") / "digits.keras", plain_model)
    assert steps(ran.answer["description"]) == AT_ONCE
    nodes_of_slurm.wait(lambda: not nodes_of_slurm.jobs(), 20)


@pytest.mark.long  # the next test has a job that begins again too
def test_a_job_whose_nodes_slurm_gives_to_another_runs_again(
    on_slurm: Service, nodes_of_slurm: slurm.Slurm, digits: Path, tmp_path: Path
) -> None:
    def preempt() -> None:
        urgent = nodes_of_slurm.srun(["--partition=urgent", "-N3", "--exclusive", "true"])
        assert urgent.returncode == 0, urgent.stderr

    ran = train_paced(on_slurm, digits, tmp_path, "preempted", preempt)
    assert "Interrupted" in steps(ran.answer["description"])


def test_two_pods_train_as_one_world(
    on_kubernetes: Service,
    nodes_of_kubernetes: pod_cluster.PodCluster,
    digits: Path,
    plain_model: Path,
    tmp_path: Path,
) -> None:
    ran = train(on_kubernetes, digits, tmp_path, "digits.py", "pods")
    assert "algo-2 has trained" in ran.output
    same_weights(unpacked(ran.answer["archive"], tmp_path / "model") / "digits.keras", plain_model)
    assert steps(ran.answer["description"]) == AT_ONCE
    deadline = time.monotonic() + 30
    while nodes_of_kubernetes.running():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_job_that_loses_a_pod_runs_again(
    on_kubernetes: Service,
    nodes_of_kubernetes: pod_cluster.PodCluster,
    digits: Path,
    tmp_path: Path,
) -> None:
    ran = train_paced(
        on_kubernetes, digits, tmp_path, "evicted", lambda: nodes_of_kubernetes.kill(1)
    )
    assert "Restarting" in steps(ran.answer["description"])


@pytest.mark.long  # the test before it kills a pod too
def test_a_job_that_may_retry_goes_on_with_the_pod_in_place_of_the_lost_one(
    on_kubernetes: Service, nodes_of_kubernetes: pod_cluster.PodCluster
) -> None:
    data = nodes_of_kubernetes.machine.claim("home") / "retried"
    data.mkdir()
    (data / "rows").touch()
    words = [
        "--instances",
        "2",
        "--max-restarts",
        "3",
        "--name",
        "retried",
        "--channel",
        f"train=file://{data}",
    ]
    command = [sys.executable, "-m", "syrtos", "submit", *words, str(SOURCE / "paced.py")]
    variables = {**on_kubernetes.variables, "SYRTOS_HOME": str(on_kubernetes.home)}
    submitted = subprocess.Popen(
        command,
        cwd=data.parent,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    attempt = on_kubernetes.home / "jobs" / "retried" / "attempt-1"
    with submitted:
        for ledgers in (attempt, attempt / "generation-2"):
            deadline = time.monotonic() + 120
            while not list(ledgers.rglob("epochs.jsonl")):
                assert submitted.poll() is None, submitted.communicate()[0]
                assert time.monotonic() < deadline
                time.sleep(0.1)
            if ledgers is attempt:
                nodes_of_kubernetes.kill(1)
        for folder in attempt.parent.glob("instances/*/ml/input/data/train"):
            (folder / "go").touch()
        printed = submitted.communicate(timeout=120)[0]
    assert submitted.returncode == 0, printed
    assert "Generation 2 goes on from step" in printed
    assert "algo-2 has trained 600 steps" in printed


@pytest.mark.long  # tests/e2e/test_ray.py loses a node of a run
def test_a_job_that_loses_a_node_of_ray_runs_again_on_others(
    on_ray: Service, nodes_of_ray: ray_cluster.RayCluster, digits: Path, tmp_path: Path
) -> None:
    # node 0 is the head: at least one of the two others is a node of the job, whichever Ray has chosen
    def lose() -> None:
        nodes_of_ray.kill(1)
        nodes_of_ray.kill(1)
        nodes_of_ray.add()

    ran = train_paced(on_ray, digits, tmp_path, "moved", lose)
    assert "Restarting" in steps(ran.answer["description"])
