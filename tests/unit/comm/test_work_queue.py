"""The work queue: every piece of work once, also where workers die, and one meeting at the end."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from syrtos.comm.requests import Question
from syrtos.comm.work_queue import KEPT, LATER, NONE, WorkQueue


class Asked:
    """One question, and the answer once there is one."""

    def __init__(
        self, queue: WorkQueue, worker: int, ask: str, arrays: Any = (), **fields: Any
    ) -> None:
        self.fields: dict[str, Any] | None = None
        self.arrays: list[Any] = []
        queue.asked[ask](Question(worker, {"round": 0, **fields}, list(arrays), self._answered))

    def _answered(self, fields: dict[str, Any], arrays: Any) -> None:
        assert self.fields is None, "answered twice"
        self.fields, self.arrays = fields, list(arrays)

    @property
    def piece(self) -> int | None:
        return None if self.fields is None else self.fields["piece"]


def take(
    queue: WorkQueue,
    worker: int,
    limit: int,
    repeatable: bool = False,
    wait: bool = False,
    number: int = 0,
) -> Asked:
    return Asked(queue, worker, "take", limit=limit, repeatable=repeatable, wait=wait, round=number)


def finish(queue: WorkQueue, worker: int, number: int = 0, **added: float) -> Asked:
    return Asked(
        queue,
        worker,
        "finish",
        [np.array(v) for v in added.values()],
        names=list(added),
        round=number,
    )


def test_pieces_are_handed_out_once_and_in_order() -> None:
    queue = WorkQueue(2)
    assert [take(queue, worker, 5).piece for worker in (0, 1, 1, 0, 1, 0)] == [0, 1, 2, 3, 4, NONE]


def test_who_is_slow_to_begin_still_gets_one() -> None:
    queue = WorkQueue(3)
    assert [take(queue, 0, 4).piece for _ in range(4)] == [0, 1, LATER, LATER]
    waiting = take(queue, 0, 4, wait=True)
    assert [take(queue, 1, 4).piece, take(queue, 2, 4).piece] == [2, 3]
    assert waiting.piece == NONE


def test_what_was_kept_for_a_worker_that_dies_is_not_lost() -> None:
    queue = WorkQueue(2)
    assert take(queue, 0, 2, repeatable=True).piece == 0
    waiting = take(queue, 0, 2, repeatable=True, wait=True)
    queue.lose(1)
    assert waiting.piece == 1


def test_what_was_lost_goes_to_whoever_knows_of_it() -> None:
    queue = WorkQueue(3)
    assert [take(queue, 1, 2, repeatable=True).piece, take(queue, 1, 4, repeatable=True).piece] == [
        0,
        1,
    ]
    queue.lose(1)
    assert take(queue, 0, 1, repeatable=True).piece == 0
    assert take(queue, 2, 4, repeatable=True).piece == 1


def test_fewer_pieces_than_workers() -> None:
    queue = WorkQueue(3)
    assert [take(queue, worker, 2).piece for worker in (2, 0, 1)] == [0, 1, NONE]


def test_what_a_dead_worker_had_is_handed_out_again_if_it_can_be_repeated() -> None:
    queue = WorkQueue(2)
    assert take(queue, 0, 2, repeatable=True).piece == 0
    assert take(queue, 1, 2, repeatable=True).piece == 1
    Asked(queue, 0, "done", [np.zeros(1)], piece=0, number=0)
    assert take(queue, 0, 2, repeatable=True).piece == LATER
    waiting = take(queue, 0, 2, repeatable=True, wait=True)
    assert waiting.piece is None
    queue.lose(1)
    assert waiting.piece == 1
    Asked(queue, 0, "done", [np.zeros(1)], piece=1, number=1)
    assert take(queue, 0, 2, repeatable=True).piece == NONE


def test_batches_of_a_dead_worker_are_lost() -> None:
    queue = WorkQueue(2)
    take(queue, 1, 3)
    queue.lose(1)
    assert [take(queue, 0, 3).piece for _ in range(3)] == [1, 2, NONE]


def test_the_end_of_a_round_waits_for_all_and_adds_up() -> None:
    queue = WorkQueue(3)
    first, second = finish(queue, 0, a=1.0), finish(queue, 2, a=2.0, b=5.0)
    assert first.fields is None
    third = finish(queue, 1)
    for ended in (first, second, third):
        assert ended.fields == {"names": ["a", "b"], "counts": {"a": 2, "b": 1}}
        assert [float(array) for array in ended.arrays] == [3.0, 5.0]


def test_the_end_of_a_round_does_not_wait_for_the_dead() -> None:
    queue = WorkQueue(2)
    ended = finish(queue, 0, a=1.0)
    queue.lose(1)
    assert ended.fields is not None
    assert finish(queue, 0, number=1).fields is not None


def test_results_are_kept_until_many_others_have_come() -> None:
    queue = WorkQueue(1)
    early = Asked(queue, 0, "result", number=0, over=False)
    Asked(queue, 0, "done", [np.array([7])], piece=0, number=0)
    assert int(early.arrays[0][0]) == 7
    finish(queue, 0)
    finish(queue, 0, number=1)
    assert Asked(queue, 0, "result", number=0, over=True).arrays
    for number in range(1, KEPT + 1):
        Asked(queue, 0, "done", [np.array([7])], piece=0, number=number)
    assert not Asked(queue, 0, "result", number=0, over=True).arrays
    assert Asked(queue, 0, "result", number=1, over=True).arrays


def test_everybody_gets_what_worker_0_shares() -> None:
    queue = WorkQueue(2)
    early = Asked(queue, 1, "share", number=0)
    assert early.fields is None
    Asked(queue, 0, "share", [np.arange(3)], number=0)
    assert early.arrays[0].tolist() == [0, 1, 2]


def test_random_lives_and_deaths_repeat_no_piece_and_lose_none() -> None:
    """Whatever the order of events: at the end each repeatable piece was done at least once, and those not lost exactly once."""
    for seed in range(200):
        chance, queue, limit = random.Random(seed), WorkQueue(4), 9
        live, in_hand, done = {0, 1, 2, 3}, dict[int, int](), list[int]()
        ended = set[int]()
        while ended < live:
            worker = chance.choice(sorted(live - ended))
            if worker in in_hand and chance.random() < 0.15 and len(live) > 1:
                live.discard(worker)
                del in_hand[worker]
                queue.lose(worker)
            elif worker in in_hand:
                piece = in_hand.pop(worker)
                done.append(piece)
                Asked(queue, worker, "done", [np.zeros(1)], piece=piece, number=piece)
            else:
                piece = take(queue, worker, limit, repeatable=True).piece
                if piece == NONE:
                    ended.add(worker)
                elif piece is not None and piece >= 0:
                    in_hand[worker] = piece
        assert sorted(done) == list(range(limit)), seed


def test_what_a_dead_worker_has_not_asked_for_is_not_kept() -> None:
    queue = WorkQueue(3)
    for worker in (0, 1):
        Asked(queue, worker, "share", [np.ones(3)] if worker == 0 else [], number=0)
    assert queue._shared
    queue.lose(2)
    assert not queue._shared
