"""Objects are those of `tests/golden/kubernetes`, and a strict API server would take each of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from schemas import GOLDEN, errors_of

from syrtos.engines.engine import EngineRequest
from syrtos_clusters.kubernetes import ENGINE, manifests
from syrtos_clusters.kubernetes.request import SETTINGS, request_of

yaml = pytest.importorskip("yaml")

KINDS = ("JobSet", "Job", "TrainJob")
ALL = {
    "image": "registry.example/train:1",
    "workers-per-pod": "2",
    "cpu": "3500m",
    "memory": "16Gi",
    "shm": "2Gi",
    "claim": "runs:/runs,data:/data",
    "env": "A=1,B=x,y=z,C=",
    "queue": "team",
    "namespace": "training",
    "name": "digits",
    "service-account": "trainer",
    "pull-secret": "registry",
    "node-selector": "gpu=h100,zone=a",
    "tolerate": "nvidia.com/gpu,spot=true",
    "user": "1000",
    "grace": "90",
    "restarts": "7",
    "ttl": "60",
}


def wanted(folder: Path, **values: str) -> EngineRequest:
    """A run of four workers with a script of one line."""
    (folder / "train.py").write_text("print('training')\n")
    return EngineRequest(
        workers=4,
        gpus=1,
        run_dir=folder / "runs" / "digits",
        words=("-n", "4", "--batch", "per-worker", "train.py", "--epochs", "3"),
        values={"image": "registry.example/train:1", **values},
        python="/usr/bin/python3",
        folder=folder,
        script=("train.py", "--epochs", "3"),
    )


def objects(folder: Path, **values: str) -> list[dict[str, Any]]:
    return manifests.objects(request_of(wanted(folder, **values)), "0123")


def pod_of(found: dict[str, Any]) -> dict[str, Any]:
    spec = found["spec"]
    if found["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return spec["template"]["spec"]


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_those_of_the_golden_files(kind: str, tmp_path: Path) -> None:
    text = ENGINE.files(wanted(tmp_path, kind=kind, claim="runs:/runs", memory="16Gi"))["run.yaml"]
    assert text == (GOLDEN / f"{kind}.yaml").read_text()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "values", [{}, {"claim": "runs:/runs"}, {"script": "image", "workdir": "/app"}, ALL]
)
def test_a_strict_server_takes_them(kind: str, values: dict[str, str], tmp_path: Path) -> None:
    for each in objects(tmp_path, kind=kind, **values):
        assert errors_of(each) == [], each["kind"]


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_older_and_newer_servers_take_them(version: str, tmp_path: Path) -> None:
    for each in objects(tmp_path, kind="Job", **ALL):
        assert errors_of(each, version) == []


@pytest.mark.parametrize("kind", KINDS)
def test_validation_sees_a_field_that_does_not_exist(kind: str, tmp_path: Path) -> None:
    *_, owner = objects(tmp_path, kind=kind)
    owner["spec"]["backofLimit"] = 1
    assert "backofLimit" in str(errors_of(owner))


def test_all_values_are_tried_here() -> None:
    assert set(SETTINGS) - set(ALL) == {"kind", "script", "workdir", "context", "runtime"}


def test_yaml_holds_no_secret_and_says_how_to_put_one_in(tmp_path: Path) -> None:
    text = ENGINE.files(wanted(tmp_path))["run.yaml"]
    secret, *_ = yaml.safe_load_all(text)
    assert secret["stringData"] == {"secret": manifests.PLACEHOLDER}
    assert f'sed "s/{manifests.PLACEHOLDER}/$(openssl rand -hex 32)/" | kubectl apply -f -' in text


def test_yaml_has_the_same_objects(tmp_path: Path) -> None:
    text = ENGINE.files(wanted(tmp_path, **ALL))["run.yaml"]
    assert list(yaml.safe_load_all(text)) == manifests.objects(
        request_of(wanted(tmp_path, **ALL)), manifests.PLACEHOLDER
    )


@pytest.mark.parametrize("kind", ["JobSet", "Job"])
def test_pods_know_their_place(kind: str, tmp_path: Path) -> None:
    *_, owner = objects(tmp_path, kind=kind)
    env = {
        each["name"]: each.get("value", each.get("valueFrom"))
        for each in pod_of(owner)["containers"][0]["env"]
    }
    first = {"JobSet": "digits-node-0-0.digits:29500", "Job": "digits-0.digits:29500"}[kind]
    assert (env["SYRTOS_NODES"], env["SYRTOS_FIRST"], env["SYRTOS_SLOTS"]) == ("4", first, "1")
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert env["SYRTOS_NODE_RANK"] == {"fieldRef": {"fieldPath": path}}
    assert env["SYRTOS_SECRET"] == {"secretKeyRef": {"name": "digits", "key": "secret"}}


def test_one_pod_meets_nobody(tmp_path: Path) -> None:
    one = request_of(dataclasses.replace(wanted(tmp_path), workers=1))
    assert "placed" not in one.command


def test_gpus_of_a_pod_are_those_of_its_workers(tmp_path: Path) -> None:
    *_, owner = objects(tmp_path, **{"workers-per-pod": "2"})
    assert pod_of(owner)["containers"][0]["resources"] == {
        "requests": {"cpu": "2", "nvidia.com/gpu": "2"},
        "limits": {"nvidia.com/gpu": "2"},
    }


def test_the_script_is_no_link(tmp_path: Path) -> None:
    """A link would have the moment in its target, and each start of the pods would look like another script."""
    *_, owner = objects(tmp_path)
    mounts = {each["name"]: each for each in pod_of(owner)["containers"][0]["volumeMounts"]}
    assert mounts["script"]["subPath"] == "train.py"
    assert mounts["script"]["mountPath"] == "/syrtos/script/train.py"


def test_preemption_does_not_count_as_a_failure(tmp_path: Path) -> None:
    *_, owner = objects(tmp_path)
    policy, job = (
        owner["spec"]["failurePolicy"],
        owner["spec"]["replicatedJobs"][0]["template"]["spec"],
    )
    assert [(rule["action"], rule["onJobFailureReasons"]) for rule in policy["rules"]] == [
        ("RestartJobSetAndIgnoreMaxRestarts", ["PodFailurePolicy"])
    ]
    rules = job["podFailurePolicy"]["rules"]
    assert rules[0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert rules[1]["onExitCodes"]["values"] == [75]


def test_what_is_lost_is_said(tmp_path: Path) -> None:
    assert "begins anew" in manifests.notes(request_of(wanted(tmp_path)))[0]
    assert manifests.notes(request_of(wanted(tmp_path, claim="runs:/runs"))) == []
    assert (
        "not started again as a group"
        in manifests.notes(request_of(wanted(tmp_path, claim="runs:/runs", kind="Job")))[0]
    )
