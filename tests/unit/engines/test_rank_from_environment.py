"""Variables of each engine that starts a command on several hosts, as it sets them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from syrtos.engines import rank_from_environment
from syrtos.engines.gathered_hosts import cluster_to_form
from syrtos.engines.rank_from_environment import Place, place_of
from syrtos.errors import ConfigurationError

TORCH = {
    "PET_NODE_RANK": "1",
    "PET_NNODES": "3",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_NPROC_PER_NODE": "auto",
}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (
            TORCH | {"PET_MASTER_PORT": "4000"},
            Place("Kubeflow Trainer (torch)", 1, 3, "job-node-0-0.job", 4000),
        ),
        (
            TORCH | {"PET_NPROC_PER_NODE": "4"},
            Place("Kubeflow Trainer (torch)", 1, 3, "job-node-0-0.job", workers=4),
        ),
        (
            {
                "JAX_PROCESS_ID": "0",
                "JAX_NUM_PROCESSES": "2",
                "JAX_COORDINATOR_ADDRESS": "a.b:1234",
            },
            Place("Kubeflow Trainer (jax)", 0, 2, "a.b", 1234),
        ),
        (
            {
                "JOB_COMPLETION_INDEX": "2",
                "SYRTOS_NODES": "4",
                "SYRTOS_FIRST": "job-0.job:29500",
                "SYRTOS_SLOTS": "2",
            },
            Place("syrtos", 2, 4, "job-0.job", workers=2),
        ),
        (
            {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "set-0.set"},
            Place("LeaderWorkerSet", 1, 2, "set-0.set"),
        ),
        (
            {
                "SM_HOSTS": json.dumps(["algo-2", "algo-1"]),
                "SM_CURRENT_HOST": "algo-2",
                "SM_NUM_GPUS": "8",
            },
            # not the machine's own name, which is another one when an interrupted job goes on
            Place("SageMaker", 1, 2, "algo-1", workers=8, name="algo-2"),
        ),
        (
            {
                "SKYPILOT_NODE_RANK": "1",
                "SKYPILOT_NUM_NODES": "2",
                "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
            },
            Place("SkyPilot", 1, 2, "10.0.0.1"),
        ),
        (
            {"DSTACK_NODE_RANK": "1", "DSTACK_NODES_NUM": "2", "DSTACK_MASTER_NODE_IP": "10.0.0.1"},
            Place("dstack", 1, 2, "10.0.0.1"),
        ),
        (
            {
                "AWS_BATCH_JOB_NODE_INDEX": "1",
                "AWS_BATCH_JOB_NUM_NODES": "2",
                "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
                "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.1",
            },
            Place("AWS Batch", 1, 2, "10.0.0.1"),
        ),
    ],
    ids=lambda value: value.engine if isinstance(value, Place) else "",
)
def test_places(env: Mapping[str, str], expected: Place) -> None:
    assert place_of(env) == expected


def test_a_process_that_is_alone() -> None:
    assert place_of({}) is None
    assert place_of({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}) is None
    assert place_of({"PET_NODE_RANK": "0", "PET_NNODES": "1:4"}) is None
    assert place_of({"SM_HOSTS": "no list", "SM_CURRENT_HOST": "algo-1"}) is None


def test_two_that_agree_and_two_that_do_not() -> None:
    jax = {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "3", "JAX_COORDINATOR_ADDRESS": "a:1"}
    found = place_of(TORCH | jax)
    assert found is not None
    assert found.engine == "Kubeflow Trainer (torch)"
    with pytest.raises(
        ConfigurationError, match=r"host 1 of 3, and those of Kubeflow Trainer \(jax\) host 2 of 3"
    ):
        place_of(TORCH | jax | {"JAX_PROCESS_ID": "2"})


def test_no_word_of_the_first_host_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="don't say where host 0 is"):
        place_of({"SYRTOS_NODE_RANK": "0", "SYRTOS_NODES": "2"})


def test_slurm_asks_for_the_name_of_the_first_node(monkeypatch: pytest.MonkeyPatch) -> None:
    class Done:
        stdout = "n3\nn4\n"

    monkeypatch.setattr(rank_from_environment.subprocess, "run", lambda *_, **__: Done)
    step = {
        "SLURM_NODEID": "1",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "n[3-4]",
        "SLURM_JOB_ID": "70012",
    }
    assert place_of(step | {"SLURM_STEP_NUM_TASKS": "2"}) == Place("Slurm", 1, 2, "n3", 20012)
    assert place_of(step | {"SLURM_STEP_NUM_TASKS": "4"}) is None


def test_tasks_of_tf_config_and_a_place() -> None:
    tasks = json.dumps(
        {"cluster": {"worker": ["a:1", "b:1", "c:1"]}, "task": {"type": "worker", "index": 1}}
    )
    both = cluster_to_form(TORCH | {"TF_CONFIG": tasks})
    assert both is not None
    assert (both.source, both.rank, both.are_workers) == ("TF_CONFIG", 1, True)
    with pytest.raises(ConfigurationError, match="TF_CONFIG says that this is task 1 of 3"):
        cluster_to_form(TORCH | {"TF_CONFIG": tasks, "PET_NODE_RANK": "2"})


def test_a_worker_of_something_else_meets_nobody() -> None:
    assert cluster_to_form(TORCH | {"PMI_SIZE": "3"}) is None
    assert cluster_to_form(TORCH | {"OMPI_COMM_WORLD_SIZE": "3"}) is None


def test_workers_of_a_host() -> None:
    found = cluster_to_form(TORCH | {"SYRTOS_SLOTS": "3"})
    assert found is not None
    assert (found.workers, found.names, found.address) == (
        3,
        ("host 0", "host 1", "host 2"),
        ("job-node-0-0.job", 29500),
    )
