"""Whom the workers wait for."""

from __future__ import annotations

from syrtos.launch.waits import Waits


def test_those_who_do_not_wait_are_awaited() -> None:
    waits = Waits()
    assert waits.awaited_ranks(range(4)) == []
    waits.begin(0, "main", "barrier", 10.0)
    waits.begin(2, "main", "barrier", 10.0)
    assert waits.awaited_ranks(range(4)) == [1, 3]
    assert waits.awaited_ranks([0, 1, 2]) == [1]  # rank 3 has finished
    waits.end(2, "main")
    assert waits.awaited_ranks(range(4)) == [1, 2, 3]
    waits.end(0, "main")
    waits.end(0, "main")
    assert waits.awaited_ranks(range(4)) == []


def test_all_of_some_wait() -> None:
    waits = Waits()
    assert not waits.all_wait([0])
    waits.begin(0, "main", "barrier", 10.0)
    assert waits.all_wait([0])
    assert not waits.all_wait([0, 2])
    waits.begin(2, "input", "a batch", 10.0)  # its script may do something else
    assert not waits.all_wait([0, 2])
    waits.serves(2)
    assert waits.all_wait([0, 2])


def test_one_notice_in_a_wait() -> None:
    time = 100.0
    waits = Waits(lambda: time)
    waits.begin(0, "main", "allreduce sum", 10.0)
    assert waits.notice(range(2)) == ""
    time = 121.0
    assert waits.notice(range(2)) == "rank 0 has waited 31 s for rank 1, in `allreduce sum`"
    assert waits.notice(range(2)) == ""
    waits.end(0, "main")
    waits.begin(1, "main", "barrier", 10.0)
    time = 150.0
    assert waits.notice(range(4)) == "rank 1 has waited 39 s for ranks 0, 2, 3, in `barrier`"


def test_short_waits_that_overlap_are_no_long_one() -> None:
    time = 100.0
    waits = Waits(lambda: time)
    for _ in range(20):
        waits.begin(0, "main", "allreduce sum", 1.0)
        time += 1.0
        waits.end(0, "input")
        time += 1.0
        waits.begin(0, "input", "read", 1.0)
        waits.end(0, "main")
        assert waits.notice(range(2)) == ""


def test_there_is_no_notice_where_all_wait() -> None:
    waits = Waits(lambda: 1000.0)
    waits.begin(0, "main", "barrier", 900.0)
    waits.begin(1, "main", "barrier", 900.0)
    assert waits.notice(range(2)) == ""


def test_other_waits_of_a_worker_and_servers() -> None:
    waits = Waits()
    waits.serves(3)
    assert waits.awaited_ranks(range(4)) == []
    waits.begin(0, "main", "barrier", 10.0)
    waits.begin(2, "input", "read", 10.0)
    assert waits.awaited_ranks(range(4)) == [1]
    waits.end(2, "main")
    assert waits.awaited_ranks(range(4)) == [1]


def test_signs_of_life() -> None:
    waits = Waits()
    assert (waits.beats(1), waits.position(1)) == (0, "")
    waits.alive(1, "train.py:5, in `upload`")
    waits.alive(1, "train.py:7, in `upload`")
    assert (waits.beats(1), waits.position(1)) == (2, "train.py:7, in `upload`")
