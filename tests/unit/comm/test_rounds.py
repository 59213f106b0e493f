"""Rounds: every piece of work once, also where workers die, and one meeting at the end."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from syrtos.comm.requests import Question
from syrtos.comm.rounds import KEPT, LATER, NONE, Rounds


class Asked:
    """One question, and the answer once there is one."""

    def __init__(self, rounds: Rounds, worker: int, ask: str, arrays: Any = (), **fields: Any) -> None:
        self.fields: dict[str, Any] | None = None
        self.arrays: list[Any] = []
        rounds.asked[ask](Question(worker, {"round": 0, **fields}, list(arrays), self._answered))

    def _answered(self, fields: dict[str, Any], arrays: Any) -> None:
        assert self.fields is None, "answered twice"
        self.fields, self.arrays = fields, list(arrays)

    @property
    def piece(self) -> int | None:
        return None if self.fields is None else self.fields["piece"]


def take(
    rounds: Rounds, worker: int, limit: int, repeatable: bool = False, wait: bool = False, number: int = 0
) -> Asked:
    return Asked(rounds, worker, "take", limit=limit, repeatable=repeatable, wait=wait, round=number)


def finish(rounds: Rounds, worker: int, number: int = 0, **added: float) -> Asked:
    return Asked(rounds, worker, "finish", [np.array(v) for v in added.values()], names=list(added), round=number)


def test_pieces_are_handed_out_once_and_in_order() -> None:
    rounds = Rounds(2)
    assert [take(rounds, worker, 5).piece for worker in (0, 1, 1, 0, 1, 0)] == [0, 1, 2, 3, 4, NONE]


def test_who_is_slow_to_begin_still_gets_one() -> None:
    rounds = Rounds(3)
    assert [take(rounds, 0, 4).piece for _ in range(4)] == [0, 1, LATER, LATER]
    waiting = take(rounds, 0, 4, wait=True)
    assert [take(rounds, 1, 4).piece, take(rounds, 2, 4).piece] == [2, 3]
    assert waiting.piece == NONE


def test_what_was_kept_for_a_worker_that_dies_is_not_lost() -> None:
    rounds = Rounds(2)
    assert take(rounds, 0, 2, repeatable=True).piece == 0
    waiting = take(rounds, 0, 2, repeatable=True, wait=True)
    rounds.lose(1)
    assert waiting.piece == 1


def test_what_was_lost_goes_to_whoever_knows_of_it() -> None:
    rounds = Rounds(3)
    assert [take(rounds, 1, 2, repeatable=True).piece, take(rounds, 1, 4, repeatable=True).piece] == [0, 1]
    rounds.lose(1)
    assert take(rounds, 0, 1, repeatable=True).piece == 0
    assert take(rounds, 2, 4, repeatable=True).piece == 1


def test_fewer_pieces_than_workers() -> None:
    rounds = Rounds(3)
    assert [take(rounds, worker, 2).piece for worker in (2, 0, 1)] == [0, 1, NONE]


def test_what_a_dead_worker_had_is_handed_out_again_if_it_can_be_repeated() -> None:
    rounds = Rounds(2)
    assert take(rounds, 0, 2, repeatable=True).piece == 0
    assert take(rounds, 1, 2, repeatable=True).piece == 1
    Asked(rounds, 0, "done", [np.zeros(1)], piece=0, number=0)
    assert take(rounds, 0, 2, repeatable=True).piece == LATER
    waiting = take(rounds, 0, 2, repeatable=True, wait=True)
    assert waiting.piece is None
    rounds.lose(1)
    assert waiting.piece == 1
    Asked(rounds, 0, "done", [np.zeros(1)], piece=1, number=1)
    assert take(rounds, 0, 2, repeatable=True).piece == NONE


def test_batches_of_a_dead_worker_are_lost() -> None:
    rounds = Rounds(2)
    take(rounds, 1, 3)
    rounds.lose(1)
    assert [take(rounds, 0, 3).piece for _ in range(3)] == [1, 2, NONE]


def test_the_end_of_a_round_waits_for_all_and_adds_up() -> None:
    rounds = Rounds(3)
    first, second = finish(rounds, 0, a=1.0), finish(rounds, 2, a=2.0, b=5.0)
    assert first.fields is None
    third = finish(rounds, 1)
    for ended in (first, second, third):
        assert ended.fields == {"names": ["a", "b"], "counts": {"a": 2, "b": 1}}
        assert [float(array) for array in ended.arrays] == [3.0, 5.0]


def test_the_end_of_a_round_does_not_wait_for_the_dead() -> None:
    rounds = Rounds(2)
    ended = finish(rounds, 0, a=1.0)
    rounds.lose(1)
    assert ended.fields is not None
    assert finish(rounds, 0, number=1).fields is not None


def test_results_are_kept_until_many_others_have_come() -> None:
    rounds = Rounds(1)
    early = Asked(rounds, 0, "result", number=0, over=False)
    Asked(rounds, 0, "done", [np.array([7])], piece=0, number=0)
    assert int(early.arrays[0][0]) == 7
    finish(rounds, 0)
    finish(rounds, 0, number=1)
    assert Asked(rounds, 0, "result", number=0, over=True).arrays
    for number in range(1, KEPT + 1):
        Asked(rounds, 0, "done", [np.array([7])], piece=0, number=number)
    assert not Asked(rounds, 0, "result", number=0, over=True).arrays
    assert Asked(rounds, 0, "result", number=1, over=True).arrays


def test_everybody_gets_what_worker_0_shares() -> None:
    rounds = Rounds(2)
    early = Asked(rounds, 1, "share", number=0)
    assert early.fields is None
    Asked(rounds, 0, "share", [np.arange(3)], number=0)
    assert early.arrays[0].tolist() == [0, 1, 2]


def test_random_lives_and_deaths_repeat_no_piece_and_lose_none() -> None:
    """Whatever the order of events: at the end each repeatable piece was done at least once, and those not lost exactly once."""
    for seed in range(200):
        chance, rounds, limit = random.Random(seed), Rounds(4), 9
        live, in_hand, done = {0, 1, 2, 3}, dict[int, int](), list[int]()
        ended = set[int]()
        while ended < live:
            worker = chance.choice(sorted(live - ended))
            if worker in in_hand and chance.random() < 0.15 and len(live) > 1:
                live.discard(worker)
                del in_hand[worker]
                rounds.lose(worker)
            elif worker in in_hand:
                piece = in_hand.pop(worker)
                done.append(piece)
                Asked(rounds, worker, "done", [np.zeros(1)], piece=piece, number=piece)
            else:
                piece = take(rounds, worker, limit, repeatable=True).piece
                if piece == NONE:
                    ended.add(worker)
                elif piece is not None and piece >= 0:
                    in_hand[worker] = piece
        assert sorted(done) == list(range(limit)), seed


def test_what_a_dead_worker_has_not_asked_for_is_not_kept() -> None:
    rounds = Rounds(3)
    for worker in (0, 1):
        Asked(rounds, worker, "share", [np.ones(3)] if worker == 0 else [], number=0)
    assert rounds._shared
    rounds.lose(2)
    assert not rounds._shared
