"""Runs of Kubernetes' objects, in pods that are namespaces of this machine: a whole life, and preemption.

`pods` emulates controllers and kubelets: no real cluster is at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pods
import pytest

import forking
from syrtos.engines.engine import EngineRequest
from syrtos_clusters.kubernetes import manifests
from syrtos_clusters.kubernetes.request import request_of

pytest.importorskip("yaml")

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[pods.Machine]:
    if reason := pods.missing():
        pytest.skip(reason)
    with pods.machine(tmp_path) as made:
        yield made


def started(machine: pods.Machine, kind: str, *, fast: bool) -> pods.Run:
    """A run of two pods with a worker each, whose run directory is in a claim."""
    (machine.claim("runs") / "out").mkdir()
    if fast:
        (machine.claim("runs") / "out" / "fast").touch()
    wanted = EngineRequest(
        workers=2,
        gpus=0,
        run_dir=machine.folder / "digits",
        words=("-n", "2", "--oversubscribe", "preempted.py", "/runs/out"),
        values={
            "image": "i",
            "kind": kind,
            "claim": "runs:/runs",
            "grace": "120",
            "env": "OMP_NUM_THREADS=1",
        },
        python="python",
        folder=SCRIPTS,
        script=("preempted.py", "/runs/out"),
    )
    return machine.create(manifests.objects(request_of(wanted), "a secret of a test"))


def weights(machine: pods.Machine) -> bytes:
    return (machine.claim("runs") / "out" / "weights.bin").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights of a run of this machine that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "fast").touch()
    command = forking.syrtos_run(folder / "run", 2, SCRIPTS / "preempted.py", folder)
    done = forking.run(command, {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return (folder / "weights.bin").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["JobSet", "TrainJob", "Job"])
def test_all_kinds_train_the_same(kind: str, machine: pods.Machine, whole: bytes) -> None:
    run = started(machine, kind, fast=True)
    assert run.to_the_end() == [0, 0], run.text()
    assert run.starts == 1
    assert "host 0 | done" in run.printed
    assert weights(machine) == whole


def test_a_run_whose_pods_are_all_preempted_goes_on(machine: pods.Machine, whole: bytes) -> None:
    """As Kueue suspends it, and admits it again: the weights are bitwise those of a run that nothing happens to."""
    run = started(machine, "JobSet", fast=False)
    run.until_printed("epoch 2 ends")
    assert run.delete_pods() == [75, 75], run.text()
    (machine.claim("runs") / "out" / "fast").touch()
    run.start()
    assert run.to_the_end() == [0, 0], run.text()
    assert "goes on" in run.text()
    assert not any(
        "epoch 0 ends" in line for line in run.printed[run.printed.index("host 0 | epoch 2 ends") :]
    )
    assert weights(machine) == whole


@pytest.mark.long
@pytest.mark.parametrize("host", [1, 0])
def test_a_run_one_of_whose_pods_is_evicted_goes_on(
    host: int, machine: pods.Machine, whole: bytes
) -> None:
    """All end with exit code 75, and the JobSet starts all again without counting it."""
    run = started(machine, "JobSet", fast=False)
    run.until_printed("epoch 2 ends")
    assert run.delete_pods(host) == [75], run.text()
    (machine.claim("runs") / "out" / "fast").touch()
    assert run.to_the_end() == [0, 0], run.text()
    assert run.starts == 2
    assert weights(machine) == whole


def test_a_pod_that_waits_for_others_ends_when_it_is_deleted(machine: pods.Machine) -> None:
    """The first process of a container ignores signals that it does not answer: the kubelet would wait for the grace period."""
    run = started(machine, "JobSet", fast=True)
    run.pods[1].kill()
    run.until_printed("waiting for host 1")
    assert run.delete_pods(0) == [143], run.text()


@pytest.mark.long
def test_a_run_whose_node_is_lost_goes_on(machine: pods.Machine, whole: bytes) -> None:
    """Its pod has no time to save anything: the JobSet starts all pods again, and counts it."""
    run = started(machine, "JobSet", fast=False)
    run.until_printed("epoch 2 ends")
    run.pods[1].kill()
    (machine.claim("runs") / "out" / "fast").touch()
    assert run.to_the_end() == [0, 0], run.text()
    assert run.starts == 2
    assert weights(machine) == whole
