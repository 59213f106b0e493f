"""Runs are submitted to an emulated API server, followed and stopped; each of its refusals is a sentence with what to do.

The server is an emulation (`kubernetes_api`): no real cluster is at hand.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes_api import Emulated, emulated

from syrtos.cli import main
from syrtos.engines.engine import EngineRequest, Submitted
from syrtos.errors import ConfigurationError, LaunchError
from syrtos_clusters.kubernetes import ENGINE

pytest.importorskip("kubernetes")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    with emulated(tmp_path) as found:
        monkeypatch.setenv("KUBECONFIG", str(found.kube_config))
        yield found


def wanted(folder: Path, workers: int = 2, **values: str) -> EngineRequest:
    (folder / "train.py").write_text("print('training')\n")
    return EngineRequest(
        workers=workers,
        gpus=0,
        run_dir=folder / "runs" / "digits",
        words=("train.py",),
        values={"image": "i", "claim": "runs:/runs", **values},
        python="python",
        folder=folder,
        script=("train.py",),
    )


def submitted(folder: Path, workers: int = 2, **values: str) -> Submitted:
    facts = ENGINE.submit(wanted(folder, workers, **values))
    return ENGINE.submitted_run(json.loads(json.dumps(facts)))


# -- a whole life --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("JobSet", {"Secret", "ConfigMap", "JobSet"}),
        ("Job", {"Secret", "ConfigMap", "Service", "Job"}),
        ("TrainJob", {"Secret", "ConfigMap", "TrainJob"}),
    ],
)
def test_objects_are_created_and_deleted(
    kind: str, made: set[str], server: Emulated, tmp_path: Path
) -> None:
    run = submitted(tmp_path, kind=kind)
    assert server.names() == made
    secret = server.objects["secrets", "digits"]
    assert len(secret["stringData"]["secret"]) == 64
    assert secret["metadata"]["ownerReferences"][0]["kind"] == kind
    assert run.state().phase == "waiting"
    run.stop()
    assert server.names() == set()
    assert run.state().phase == "stopped"
    run.stop()  # again: there is nothing to stop, which is no error


def test_two_runs_have_different_secrets(server: Emulated, tmp_path: Path) -> None:
    for name in ("one", "two"):
        ENGINE.submit(wanted(tmp_path, name=name))
    secrets = {server.objects["secrets", name]["stringData"]["secret"] for name in ("one", "two")}
    assert len(secrets) == 2


def test_the_output_of_all_pods_is_followed_to_the_end(server: Emulated, tmp_path: Path) -> None:
    run = submitted(tmp_path)
    pods = [server.add_pod("digits", host) for host in (0, 1)]
    server.say(pods[0], "epoch 1")
    pieces = run.output(follow=True)
    assert next(pieces) == b"host 0 | epoch 1\n"
    server.say(pods[1], "waits")
    assert next(pieces) == b"host 1 | waits\n"
    server.say(pods[0], "epoch 2")
    for pod in pods:
        server.end_pod(pod)
    server.end_run("jobsets", "digits", "Completed")
    assert list(pieces) == [b"host 0 | epoch 2\n"]
    assert (run.state().phase, run.state().code) == ("finished", 0)


def test_one_pod_has_no_prefix(server: Emulated, tmp_path: Path) -> None:
    run = submitted(tmp_path, 1)
    pod = server.add_pod("digits", 0)
    server.say(pod, "alone | here")
    assert list(run.output(follow=False)) == [b"alone | here\n"]


def test_pods_that_take_the_place_of_others_are_followed(server: Emulated, tmp_path: Path) -> None:
    run = submitted(tmp_path)
    first = [server.add_pod("digits", host) for host in (0, 1)]
    server.say(first[0], "step 1")
    pieces = run.output(follow=True)
    assert next(pieces) == b"host 0 | step 1\n"
    for pod in first:
        server.end_pod(pod, 75)
        server.remove_pod(pod)
    assert run.state().phase == "waiting"
    again = [server.add_pod("digits", host) for host in (0, 1)]
    server.say(again[0], "goes on from step 1")
    assert next(pieces) == b"host 0 | goes on from step 1\n"
    for pod in again:
        server.end_pod(pod)
    server.end_run("jobsets", "digits", "Completed")
    assert list(pieces) == []


def test_the_same_command_takes_the_place_of_an_ended_run(server: Emulated, tmp_path: Path) -> None:
    submitted(tmp_path)
    before = server.objects["jobsets", "digits"]["metadata"]["uid"]
    with pytest.raises(
        LaunchError, match=r"JobSet digits is in the namespace training already, and goes on"
    ):
        submitted(tmp_path)
    server.end_pod(server.add_pod("digits", 0), 75)
    server.end_run("jobsets", "digits", "Failed", "FailedJobs", "jobset failed")
    submitted(tmp_path)
    assert server.objects["jobsets", "digits"]["metadata"]["uid"] != before


def test_the_commands_follow_a_detached_run(
    server: Emulated,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('training')\n")
    words = [
        "run",
        "--on",
        "kubernetes",
        "-n",
        "2",
        "--with",
        "image=i",
        "--run-dir",
        "digits",
        "--detach",
        "train.py",
    ]
    assert main(words) == 0
    command = server.objects["jobsets", "digits"]["spec"]["replicatedJobs"][0]["template"]["spec"][
        "template"
    ]["spec"]
    assert command["containers"][0]["command"][-1] == "/syrtos/script/train.py"
    assert b"is lost with the pods" in capfdbinary.readouterr().err
    server.say(server.add_pod("digits", 0), "epoch 1")
    assert main(["status", "digits"]) == 0
    assert b"Running." in capfdbinary.readouterr().out
    assert main(["logs", "digits"]) == 0
    assert capfdbinary.readouterr().out == b"host 0 | epoch 1\n"
    assert main(["stop", "digits"]) == 0
    assert {kind for kind in server.names() if kind != "Pod"} == set()
    assert main(["status", "digits"]) == 75
    assert b"Stopped. The cluster has no JobSet digits" in capfdbinary.readouterr().out


# -- refusals ------------------------------------------------------------------------------------------------


def test_what_was_created_is_deleted_where_the_last_is_refused(
    server: Emulated, tmp_path: Path
) -> None:
    server.refusals["POST", "jobsets"] = (
        422,
        'JobSet.jobset.x-k8s.io "digits" is invalid: spec: no',
    )
    with pytest.raises(
        LaunchError, match=r"JobSet digits: the cluster refuses: .*is invalid: spec: no"
    ):
        submitted(tmp_path)
    assert server.names() == set()


QUOTA = 'secrets "digits" is forbidden: exceeded quota: team, requested: count/secrets=1, used: count/secrets=9, limited: count/secrets=9'
RIGHTS = 'secrets is forbidden: User "ada" cannot create resource "secrets" in API group "" in the namespace "training"'


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        ((403, QUOTA), r"quota is exhausted \(exceeded quota: team.*kubectl describe quota"),
        (
            (403, RIGHTS),
            r"this user may not do it \(.*ada.*\): ask .* for a role in the namespace training",
        ),
        (
            (404, 'namespaces "training" not found'),
            r"no namespace training: create it, or .*--with namespace=",
        ),
        ((401, "Unauthorized"), r"does not accept the kube config's credentials: log in again"),
        (
            (409, 'secrets "digits" already exists'),
            r"there is one already: `kubectl delete secret digits`",
        ),
    ],
)
def test_refusals_are_sentences(
    refusal: tuple[int, str], told: str, server: Emulated, tmp_path: Path
) -> None:
    server.refusals["POST", "secrets"] = refusal
    with pytest.raises(LaunchError, match=told):
        submitted(tmp_path)


@pytest.mark.parametrize(("kind", "plural"), [("JobSet", "jobsets"), ("TrainJob", "trainjobs")])
def test_a_kind_that_is_not_installed(
    kind: str, plural: str, server: Emulated, tmp_path: Path
) -> None:
    server.missing.add(plural)
    with pytest.raises(LaunchError, match=rf"the cluster has no {kind}s: .*--with kind=Job"):
        submitted(tmp_path, kind=kind)
    assert server.names() == set()


def test_credentials_that_are_refused(server: Emulated, tmp_path: Path) -> None:
    server.kube_config.write_text(server.kube_config.read_text().replace("a token", "an old token"))
    with pytest.raises(LaunchError, match="does not accept the kube config's credentials"):
        submitted(tmp_path)


def test_no_kube_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigurationError, match=r"needs a kube config .*KUBECONFIG.*--dry-run"):
        submitted(tmp_path)


def test_no_such_context(server: Emulated, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no context elsewhere.*get-contexts"):
        submitted(tmp_path, context="elsewhere")


def test_a_server_that_is_not_there(server: Emulated, tmp_path: Path) -> None:
    server.kube_config.write_text(
        server.kube_config.read_text().replace("http://127.0.0.1:", "http://127.0.0.1:1#")
    )
    with pytest.raises(LaunchError, match="API server can't be reached"):
        submitted(tmp_path)


# -- what becomes of pods ------------------------------------------------------------------------------------


def test_why_a_pod_waits_is_told(server: Emulated, tmp_path: Path) -> None:
    run = submitted(tmp_path)
    name = server.add_pod("digits", 0, "Pending")
    message = "0/3 nodes are available: 3 Insufficient memory."
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    server.put(
        "pods",
        {**server.objects["pods", name], "status": {"phase": "Pending", "conditions": [condition]}},
    )
    assert (
        run.state().why
        == f"pod {name} waits: {message} Ask for less (`--with memory=`), or wait until some is free."
    )


def test_why_there_are_no_pods_is_told(server: Emulated, tmp_path: Path) -> None:
    run = submitted(tmp_path)
    about = {"kind": "Job", "name": "digits-2-node-0", "namespace": "training"}
    other = {
        "metadata": {"name": "o"},
        "involvedObject": about,
        "reason": "FailedCreate",
        "message": "of another run",
    }
    server.put("events", other)
    assert run.state().why == ""
    about = {"kind": "Job", "name": "digits-node-0", "namespace": "training"}
    message = 'Error creating: pods "x" is forbidden: exceeded quota: team, requested: cpu=2, used: cpu=9, limited: cpu=10'
    event = {
        "metadata": {"name": "e"},
        "involvedObject": about,
        "reason": "FailedCreate",
        "message": message,
    }
    server.put("events", event)
    assert "quota is exhausted (exceeded quota: team, requested: cpu=2" in run.state().why
    server.refusals["GET", "events"] = (403, "events is forbidden: User may not")
    assert run.state().why == ""  # without the right to read events nothing is known


def test_memory_that_did_not_suffice_is_told(server: Emulated, tmp_path: Path) -> None:
    run = submitted(tmp_path, 1, kind="Job")
    pod = server.add_pod("digits", 0, label="batch.kubernetes.io/job-name")
    server.end_pod(pod, 137, "OOMKilled")
    server.end_run(
        "jobs",
        "digits",
        "Failed",
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    )
    assert (run.state().phase, run.state().code) == ("failed", 137)
    assert "OOMKilled" in run.state().why


# -- kubectl -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["JobSet", "Job", "TrainJob"])
def test_kubectl_creates_what_is_printed(kind: str, server: Emulated, tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed (apt: kubernetes-client)")
    text = ENGINE.files(wanted(tmp_path, kind=kind))["run.yaml"]
    command = [
        "kubectl",
        "--kubeconfig",
        str(server.kube_config),
        "--cache-dir",
        str(tmp_path),
        "create",
        "-f",
        "-",
    ]
    done = subprocess.run(
        [*command, "--validate=false"], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {"Secret", "ConfigMap", kind} <= server.names()
