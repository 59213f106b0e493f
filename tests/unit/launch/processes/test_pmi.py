"""What workers are told of each other before MPI connects them."""

from __future__ import annotations

import queue

import pytest

from syrtos.launch.processes import pmi


@pytest.mark.parametrize(
    ("nodes", "mapping"),
    [
        ([0, 0, 0], "(vector,(0,1,3))"),
        ([0, 0, 1], "(vector,(0,1,2),(1,1,1))"),
        ([0, 1, 0], "(vector,(0,1,1),(1,1,1),(0,1,1))"),
    ],
)
def test_ranks_of_one_host_are_known(nodes: list[int], mapping: str) -> None:
    (answer,) = pmi.KeyValues(nodes).answer(0, "cmd=get kvsname=x key=PMI_process_mapping\n")
    assert answer == (0, f"cmd=get_result rc=0 msg=success value={mapping}")


def test_what_one_has_put_another_gets() -> None:
    values = pmi.KeyValues([0, 1])
    assert "rc=-1" in values.answer(0, "cmd=get kvsname=x key=address\n")[0][1]
    values.answer(1, "cmd=put kvsname=x key=address value=10.0.0.2#9\n")
    assert values.answer(0, "cmd=get kvsname=x key=address\n") == [
        (0, "cmd=get_result rc=0 msg=success value=10.0.0.2#9")
    ]


def test_the_last_one_opens_a_barrier() -> None:
    values = pmi.KeyValues([0, 0])
    for _ in range(2):
        assert values.answer(1, "cmd=barrier_in\n") == []
        assert sorted(rank for rank, _ in values.answer(0, "cmd=barrier_in\n")) == [0, 1]


def test_no_two_worlds_have_one_name() -> None:
    assert pmi.KeyValues([0]).answer(0, "cmd=get_my_kvsname\n") != pmi.KeyValues([0]).answer(
        0, "cmd=get_my_kvsname\n"
    )


def test_places_of_a_worker() -> None:
    found = pmi.environment(3, [0, 1, 0, 1], 7)
    assert (found["PMI_RANK"], found["PMI_SIZE"], found["PMI_FD"]) == ("3", "4", "7")
    assert (found["MPI_LOCALRANKID"], found["MPI_LOCALNRANKS"]) == ("1", "2")


def test_messages_that_arrive_together_are_read_one_by_one() -> None:
    """MPI sends an abort, waits for no answer, and goes on to the first message of its end."""
    heard: queue.Queue[tuple[int, str]] = queue.Queue()
    sockets = pmi.Sockets([0, 1], lambda rank, line: heard.put((rank, line)))
    sockets.ends[1].sendall(b"cmd=abort exitcode=3\ncmd=barrier_in\n")
    sockets.start()
    assert [heard.get(timeout=60) for _ in range(2)] == [
        (1, "cmd=abort exitcode=3"),
        (1, "cmd=barrier_in"),
    ]
    # A connection that ends within a line.
    sockets.ends[0].sendall(b"cmd=abort exitcode=3\ncmd=barr")
    for end in sockets.ends.values():
        end.close()
    assert heard.get(timeout=60) == (0, "cmd=abort exitcode=3")
