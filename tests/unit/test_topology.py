"""Who we are, and who started us."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.errors import ConfigurationError, WorldError
from syrtos.topology import (
    Launch,
    World,
    check_keras_backend,
    check_tf_config,
    check_world,
    detect,
    world_from_hosts,
)

MPICH, OPEN_MPI, SLURM = (
    {"PMI_SIZE": "4"},
    {"OMPI_COMM_WORLD_SIZE": "3"},
    {"SLURM_STEP_NUM_TASKS": "2"},
)

host_lists = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("env", "starter", "size"),
    [
        (MPICH, "mpiexec", 4),
        (OPEN_MPI, "Open MPI", 3),
        (SLURM, "Slurm", 2),
        (SLURM | MPICH, "mpiexec", 4),
        (OPEN_MPI | MPICH, "mpiexec", 4),
        (SLURM | OPEN_MPI, "Open MPI", 3),
    ],
)
def test_the_innermost_starter_wins(env: dict[str, str], starter: str, size: int) -> None:
    launch = detect(env)
    assert launch is not None
    assert launch.starter.startswith((starter, "a " + starter))
    assert launch.size == size


@pytest.mark.parametrize(("env", "joins"), [(MPICH, True), (OPEN_MPI, False), (SLURM, False)])
def test_only_our_own_mpi_joins(env: dict[str, str], joins: bool) -> None:
    launch = detect(env)
    assert launch is not None
    assert launch.joins is joins


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SLURM_NTASKS": "8", "SLURM_JOB_ID": "17"},  # an allocation, whose script runs once
        {"PMI_SIZE": ""},
        {"PMI_SIZE": "many"},
        {"PMI_RANK": "0", "OMPI_COMM_WORLD_RANK": "0"},
    ],
)
def test_a_plain_process_was_started_by_nobody(env: dict[str, str]) -> None:
    assert detect(env) is None


@pytest.mark.parametrize(
    ("launch", "size"), [(None, 1), (Launch("x", 1, False), 1), (Launch("x", 4, True), 4)]
)
def test_the_world_that_was_promised_is_accepted(launch: Launch | None, size: int) -> None:
    check_world(launch, size)


@pytest.mark.parametrize(
    ("env", "size", "fix"),
    [
        (MPICH, 1, "`syrtos run -n 4 train.py`, or with the `mpiexec` beside this Python"),
        (MPICH, 2, "in a world of 2"),
        (OPEN_MPI, 1, r"syrtos brings its own MPI \(MPICH\).*`syrtos run -n 3 train.py`"),
        (
            SLURM,
            1,
            "`srun --mpi=pmi2 python -m syrtos train.py`, or run `syrtos run -n 2 train.py`",
        ),
    ],
)
def test_another_world_is_refused_with_the_fix(env: dict[str, str], size: int, fix: str) -> None:
    with pytest.raises(WorldError, match=fix) as caught:
        check_world(detect(env), size)
    promised = next(iter(env.values()))
    assert f"as one of {promised} workers, but found itself in a world of {size}." in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("env", "size"),
    [
        ({}, 4),
        ({"KERAS_BACKEND": ""}, 4),
        ({"KERAS_BACKEND": "tensorflow"}, 4),
        ({"KERAS_BACKEND": "jax"}, 4),
        ({"KERAS_BACKEND": "torch"}, 1),
    ],
)
def test_backends_that_can_exchange_or_need_not_are_accepted(
    env: dict[str, str], size: int
) -> None:
    check_keras_backend(env, size)


@pytest.mark.parametrize("backend", ["numpy", "Tensorflow"])
def test_backends_without_exchange_are_refused_with_the_fix(backend: str) -> None:
    fix = rf"KERAS_BACKEND={backend} .* between 2 workers.*can: tensorflow, jax, torch\. Set KERAS_BACKEND=tensorflow"
    with pytest.raises(ConfigurationError, match=fix):
        check_keras_backend({"KERAS_BACKEND": backend}, 2)


@pytest.mark.parametrize(
    "env", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}, {"TF_CONFIG": '{"cluster": {}}'}]
)
def test_a_tf_config_that_can_be_read_is_accepted(env: dict[str, str]) -> None:
    check_tf_config(env)


@pytest.mark.parametrize("text", ["{", "{'cluster': {}}", "3", "[]", "null"])
def test_a_tf_config_that_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"TF_CONFIG is no JSON object.*unset it, or write it as"
    ) as caught:
        check_tf_config({"TF_CONFIG": text})
    assert repr(text) in str(caught.value)


def test_workers_of_two_hosts() -> None:
    assert world_from_hosts(2, ["a", "a", "b", "b"]) == World(
        2, 4, local_rank=0, local_size=2, node_rank=1, node_count=2
    )
    assert world_from_hosts(3, ["b", "a", "b", "a"]) == World(
        3, 4, local_rank=1, local_size=2, node_rank=1, node_count=2
    )


@given(host_lists)
def test_local_ranks_number_the_workers_of_each_host(hosts: list[str]) -> None:
    worlds = [world_from_hosts(rank, hosts) for rank in range(len(hosts))]
    for host in set(hosts):
        here = [world for world, other in zip(worlds, hosts, strict=True) if other == host]
        assert [world.local_rank for world in here] == list(range(len(here)))
        assert {world.local_size for world in here} == {len(here)}
        assert len({world.node_rank for world in here}) == 1


@given(host_lists)
def test_node_ranks_number_the_hosts(hosts: list[str]) -> None:
    worlds = [world_from_hosts(rank, hosts) for rank in range(len(hosts))]
    assert {world.node_rank for world in worlds} == set(range(len(set(hosts))))
    assert {world.node_count for world in worlds} == {len(set(hosts))}
    assert worlds[0].node_rank == 0
