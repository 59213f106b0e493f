"""One suite over every engine and size of world."""

from __future__ import annotations

import threading

import pytest
import workers

from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.testing import run_world

WORLDS = [1, 2, 3, 4, 5, 8]
# Processes of 5 and 8 are another odd and another even number, and 8 on two cores take ten seconds.
OF_PROCESSES = [
    pytest.param(size, marks=pytest.mark.long) if size >= 5 else size for size in WORLDS
]
HOSTS = [[0, 1], [0, 0, 1], [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1, 2]]
LARGER_HOSTS = [[0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 2, 2]]


@pytest.mark.parametrize("size", WORLDS)
def test_in_process(size: int) -> None:
    failures: list[BaseException] = []

    def play(comm: InProcessCommunicator) -> None:
        try:
            workers.check_all(comm)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=play, args=(comm,))
        for comm in InProcessCommunicator.world(size, timeout=20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("size", OF_PROCESSES)
def test_mpi(size: int) -> None:
    assert run_world(size, workers.on_mpi) == ["ok"] * size


@pytest.mark.parametrize("size", OF_PROCESSES)
def test_shared_memory(size: int) -> None:
    assert run_world(size, workers.on_shared_memory) == ["ok"] * size


@pytest.mark.parametrize(
    "hosts", [*HOSTS, *(pytest.param(hosts, marks=pytest.mark.long) for hosts in LARGER_HOSTS)]
)
def test_hierarchy(hosts: list[int]) -> None:
    assert run_world(len(hosts), workers.on_hierarchy, hosts) == ["ok"] * len(hosts)


@pytest.mark.parametrize("size", [2, 3])
def test_windows(size: int) -> None:
    assert run_world(size, workers.with_windows) == ["ok"] * size


def test_a_forked_process_takes_no_part() -> None:
    assert run_world(2, workers.in_a_forked_process) == ["ok", "ok"]


def test_little_memory() -> None:
    assert run_world(2, workers.with_little_memory) == ["ok", "ok"]


@pytest.mark.long
def test_more_than_two_gigabytes_in_one_call() -> None:
    assert run_world(2, workers.over_two_gigabytes) == ["ok", "ok"]
