"""A work queue: it assigns the pieces of an epoch to workers that train at their own pace.

The workers meet at the end of the epoch. The first server keeps the queue.

The invariant: a round ends when every live worker has finished it, and each piece of its work was
assigned once; the pieces that a worker was working on when it died are assigned again, if the work
can be repeated.
"""

from __future__ import annotations

import collections
import dataclasses

from syrtos.comm.arrays import Array
from syrtos.comm.requests import Question

# Answers of a round that has no piece to give: there will be none, or there may be one if a worker
# dies.
NONE, LATER = -1, -2
# The number of results that are kept.
KEPT = 1 << 14


@dataclasses.dataclass
class _Round:
    """The state of one round.

    Attributes:
        begun: the number of pieces that were assigned for the first time.
        again: pieces that a worker was working on when it died.
        in_hand: the worker of each piece that is being worked on.
        idle: questions of workers that ask for a piece while others may still die with theirs.
        sums: the sums of the workers' arrays, by name.
        counts: the number of workers that have added to each sum, by name.
        finished: the question of each worker that has finished.
        served: workers that had a piece. The last pieces are kept for workers that had none, as
            long as there are enough.
    """

    begun: int = 0
    again: list[int] = dataclasses.field(default_factory=list)
    in_hand: dict[int, int] = dataclasses.field(default_factory=dict)
    idle: list[Question] = dataclasses.field(default_factory=list)
    sums: dict[str, Array] = dataclasses.field(default_factory=dict)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    finished: dict[int, Question] = dataclasses.field(default_factory=dict)
    served: set[int] = dataclasses.field(default_factory=set)


class WorkQueue:
    """The answers to what workers ask about rounds.

    Questions name their round by ``round``, counted from 0 by each worker alike.
    """

    def __init__(self, workers: int) -> None:
        self._live = set(range(workers))
        self._rounds: dict[int, _Round] = collections.defaultdict(_Round)
        self._results: dict[int, Array] = {}
        self._wanted: dict[int, list[Question]] = collections.defaultdict(list)
        self._shared: dict[int, list[Array]] = {}
        self._sharing: dict[int, list[Question]] = collections.defaultdict(list)
        self._given: dict[int, set[int]] = collections.defaultdict(set)
        self.asked = {
            "take": self._take,
            "done": self._done,
            "result": self._result,
            "finish": self._finish,
            "share": self._share,
        }

    def lose(self, worker: int) -> None:
        """Forgets a worker, which asks no more questions.

        The pieces that it was working on are assigned again.
        """
        self._live.discard(worker)
        for number, current in list(self._rounds.items()):
            lost = [piece for piece, by in current.in_hand.items() if by == worker]
            for piece in lost:
                del current.in_hand[piece]
            current.again += lost
            current.idle = [question for question in current.idle if question.worker != worker]
            current.finished.pop(worker, None)
            self._serve_idle(current)
            self._end_if_finished(number)
        for number in list(self._shared):
            self._forget_shared(number)

    # -- pieces of work ------------------------------------------------------------------------

    def _take(self, question: Question) -> None:
        """Answers with the next piece: its number, below ``limit``.

        If there is none to give now, there may be more: while one is kept for a worker that has had
        none, and with ``repeatable`` while others have some in hand. With ``wait`` the answer comes
        when that is decided.
        """
        current = self._rounds[question.fields["round"]]
        current.idle.append(question)
        self._serve_idle(current)

    def _serve_idle(self, current: _Round) -> None:
        served = None
        # a worker that gets its first piece frees one that was kept
        while served != current.served:
            served = set(current.served)
            waiting, current.idle = current.idle, []
            for question in waiting:
                self._serve(current, question)

    def _serve(self, current: _Round, question: Question) -> None:
        limit, repeatable = question.fields["limit"], question.fields["repeatable"]
        lost = (
            next((piece for piece in current.again if piece < limit), None) if repeatable else None
        )
        if lost is not None:
            current.again.remove(lost)
            self._hand_out(current, question, lost)
        elif current.begun + self._kept_for_others(current, question.worker) < limit:
            current.begun += 1
            current.served.add(question.worker)
            self._hand_out(current, question, current.begun - 1)
        elif current.begun >= limit and not (repeatable and current.in_hand):
            question.answer(piece=NONE)
        elif question.fields["wait"]:
            current.idle.append(question)
        else:
            question.answer(piece=LATER)

    def _kept_for_others(self, current: _Round, worker: int) -> int:
        return len(self._live - current.served) if worker in current.served else 0

    @staticmethod
    def _hand_out(current: _Round, question: Question, piece: int) -> None:
        if question.fields["repeatable"]:
            current.in_hand[piece] = question.worker
        question.answer(piece=piece)

    def _done(self, question: Question) -> None:
        """Notes that a piece is done, and keeps its result, one array.

        The result is kept under its ``number``, over all rounds, until many others have come.
        """
        number = question.fields["number"]
        current = self._rounds[question.fields["round"]]
        current.in_hand.pop(question.fields["piece"], None)
        self._results[number] = question.arrays[0]
        if len(self._results) > KEPT:
            del self._results[next(iter(self._results))]  # the oldest
        for waiting in self._wanted.pop(number, []):
            waiting.answer(question.arrays)
        question.answer()
        self._serve_idle(current)

    def _result(self, question: Question) -> None:
        number = question.fields["number"]
        kept = [self._results[number]] if number in self._results else []
        if kept or question.fields["over"]:
            question.answer(kept)
        else:
            self._wanted[number].append(question)

    # -- the end of a round ----------------------------------------------------------------------

    def _finish(self, question: Question) -> None:
        """Adds arrays by ``names``, and answers once all workers have finished.

        The answer has the sums, and the number of workers that added to each.
        """
        number = question.fields["round"]
        current = self._rounds[number]
        for name, array in zip(question.fields["names"], question.arrays, strict=True):
            current.sums[name] = current.sums[name] + array if name in current.sums else array
            current.counts[name] = current.counts.get(name, 0) + 1
        current.finished[question.worker] = question
        self._end_if_finished(number)

    def _end_if_finished(self, number: int) -> None:
        current = self._rounds[number]
        if not self._live <= set(current.finished):
            return
        names = sorted(current.sums)
        for worker, question in current.finished.items():
            if worker in self._live:
                question.answer(
                    [current.sums[name] for name in names], names=names, counts=current.counts
                )
        del self._rounds[number]

    # -- broadcasts of worker 0 ------------------------------------------------------------------

    def _share(self, question: Question) -> None:
        """Answers with worker 0's arrays, for all workers; ``number`` counts such questions."""
        number = question.fields["number"]
        self._sharing[number].append(question)
        if question.worker == 0:
            self._shared[number] = question.arrays
        if number not in self._shared:
            return
        for waiting in self._sharing.pop(number):
            waiting.answer([] if waiting.worker == 0 else self._shared[number])
            self._given[number].add(waiting.worker)
        self._forget_shared(number)

    def _forget_shared(self, number: int) -> None:
        if self._live <= self._given[number]:
            del self._shared[number], self._given[number]
