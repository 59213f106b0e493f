"""What each worker may use of its host."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.errors import ConfigurationError
from syrtos.launch import resources


def placed(rank: int, size: int) -> dict[str, str]:
    return {"MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": str(size)}


@pytest.mark.parametrize(
    ("env", "cores", "threads"),
    [
        ({}, 8, "8"),
        (placed(0, 2), 8, "4"),
        (placed(2, 3), 8, "2"),
        (placed(3, 4), 2, "1"),
        ({"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, 8, "2"),
        ({"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "2,2"}, 8, "4"),
        (placed(0, 4) | {"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"}, 8, "2"),
    ],
)
def test_workers_of_a_host_share_its_cores(env: dict[str, str], cores: int, threads: str) -> None:
    wanted = resources.share(env, cores, gpus={})
    assert (wanted["OMP_NUM_THREADS"], wanted["TF_NUM_INTRAOP_THREADS"]) == (threads, threads)


@given(st.integers(1, 64), st.integers(1, 256))
def test_threads_fill_the_host_and_no_more(size: int, cores: int) -> None:
    threads = [
        int(resources.share(placed(rank, size), cores, {})["OMP_NUM_THREADS"])
        for rank in range(size)
    ]
    assert min(threads) >= 1
    assert sum(threads) <= max(cores, size)
    assert sum(threads) > cores - size


def test_an_exchange_has_a_thread_beside_computation() -> None:
    assert int(resources.share(placed(0, 2), 2, {})["TF_NUM_INTEROP_THREADS"]) >= 2


def test_each_worker_gets_one_gpu_by_local_rank() -> None:
    gpus = [
        resources.share(placed(rank, 4), 8, {"CUDA_VISIBLE_DEVICES": 4})["CUDA_VISIBLE_DEVICES"]
        for rank in range(4)
    ]
    assert gpus == ["0", "1", "2", "3"]


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_more_workers_than_gpus_are_told_what_to_write(variable: str) -> None:
    advice = rf"4 workers and 2 GPUs \({variable}=0,1\)\. Start as many workers as GPUs; .*: {variable}=0,1,0,1; .*: {variable}=$"
    with pytest.raises(ConfigurationError, match=advice):
        resources.share(placed(3, 4), 8, {variable: 2})
    shared = resources.share(placed(3, 4) | {variable: "0,1,0,1"}, 8, {variable: 2})
    assert shared[variable] == shared["SYRTOS_SHARED_GPU"] == "1"
    assert "SYRTOS_SHARED_GPU" not in resources.share(
        placed(1, 2) | {variable: "0,1,0,1"}, 8, {variable: 2}
    )


def test_parts_of_gpus_have_names() -> None:
    parts = {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}
    assert (
        resources.share(placed(1, 2) | parts, 8, {"CUDA_VISIBLE_DEVICES": 1})[
            "CUDA_VISIBLE_DEVICES"
        ]
        == "MIG-b"
    )


@pytest.mark.parametrize(
    "asked", [{"SLURM_GPUS_PER_TASK": "1"}, {"SLURM_TRES_PER_TASK": "cpu=2,gres/gpu=1"}]
)
def test_gpus_that_slurm_shows_a_task_stay(asked: dict[str, str]) -> None:
    task = {
        "SLURM_LOCALID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "4",
        "CUDA_VISIBLE_DEVICES": "3",
    } | asked
    assert "CUDA_VISIBLE_DEVICES" not in resources.share(task, 8, {"CUDA_VISIBLE_DEVICES": 4})


def test_without_gpus_none_is_hidden() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in resources.share(placed(0, 2), 8, gpus={})


def test_hosts_of_one_slurm_step_may_have_different_counts() -> None:
    second_host = {"SLURM_LOCALID": "3", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "1,4"}
    assert resources.share(second_host, 8, {})["OMP_NUM_THREADS"] == "2"


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    env = placed(0, 1) | {"OMP_NUM_THREADS": "7", "CUDA_VISIBLE_DEVICES": ""}
    monkeypatch.setattr(os, "environ", env)
    resources.apply(env)
    assert (env["OMP_NUM_THREADS"], env["CUDA_VISIBLE_DEVICES"]) == ("7", "")
    assert env["TF_NUM_INTRAOP_THREADS"] == str(len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("given", "gets"), [("-1", None), ("", None), ("0,1", "1"), ("2,3,-1,0", "3")]
)
def test_gpus_that_are_hidden_are_none(given: str, gets: str | None) -> None:
    env = placed(1, 2) | {"CUDA_VISIBLE_DEVICES": given}
    assert resources.share(env, 8, {"CUDA_VISIBLE_DEVICES": 4}).get("CUDA_VISIBLE_DEVICES") == gets
