"""The parameter servers of a run, as its workers see them.

A run with ``--ps N`` has N processes after its workers that hold the parameters and apply the
optimizers. The first of them also keeps the rounds (see `syrtos.comm.work_queue`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from syrtos.comm.arrays import Array
from syrtos.comm.objects import from_bytes, to_bytes
from syrtos.comm.work_queue import LATER, NONE

if TYPE_CHECKING:
    from syrtos.comm.requests import Asking, Message


class Servers:
    """A worker's side of the parameter servers.

    Attributes:
        count: the number of servers.
        staleness: how many updates a worker may be ahead of the slowest; None: as many as it likes;
            0: all make each update together.
    """

    def __init__(self, asking: Asking, workers: int, count: int, staleness: int | None) -> None:
        self.count = count
        self.staleness = staleness
        self._asking = asking
        self._workers = workers
        self._round = 0
        self._clocks: dict[str, int] = {}
        self._shared = 0

    @property
    def synchronous(self) -> bool:
        """Returns whether every update uses the gradients of all workers, as without servers."""
        return self.staleness == 0

    # -- parameters ------------------------------------------------------------------------------

    def register(self, key: str, parts: Sequence[Message]) -> list[Message]:
        """Gives each server its part of an optimizer, as worker 0 has it.

        The answers come when that part is there.
        """
        return self._ask_all("register", parts, key=key, round=self._round)

    def push(self, key: str, parts: Sequence[Message]) -> list[Message]:
        """Gives each server its part of this worker's gradients, and returns the new values."""
        clock = self._clocks[key] = self._clocks.get(key, 0) + 1
        return self._ask_all("push", parts, key=key, clock=clock, round=self._round)

    def state(self, key: str) -> list[Message]:
        """Returns the values and the state of an optimizer, a message of each server."""
        return self._ask_all("state", [({}, [])] * self.count, key=key)

    # -- rounds ------------------------------------------------------------------------------------

    def take(self, limit: int | None, repeatable: bool = False) -> int | None:
        """Returns the next piece of this round's work that is not assigned yet; None if all are.

        Pieces are numbers below ``limit``.
        """
        most = 1 << 62 if limit is None else limit
        answer, _ = self._ask_first("take", limit=most, repeatable=repeatable, wait=False)
        if answer["piece"] == LATER:
            # before waiting, so that no other worker waits for this one's updates
            self._idle()
            answer, _ = self._ask_first("take", limit=most, repeatable=repeatable, wait=True)
        return None if answer["piece"] == NONE else int(answer["piece"])

    def done(self, piece: int, number: int, result: Any) -> None:
        """Reports that a piece taken as repeatable is done; ``result`` is plain data."""
        self._ask_first("done", [to_bytes(result)], piece=piece, number=number)

    def result(self, number: int, over: bool) -> Any:
        """Returns the result that any worker gave to `done` for this number.

        With ``over``, its round has ended, so there is no waiting.

        Raises:
            KeyError: it is not kept any more.
        """
        _, arrays = self._ask_first("result", number=number, over=over)
        if not arrays:
            raise KeyError(number)
        return from_bytes(arrays[0])

    def end_round(self, added: Mapping[str, Array]) -> dict[str, tuple[Array, int]]:
        """Waits until every worker that lives has ended the round.

        Returns:
            For each name the sum over the workers that gave an array of it, and the number of these
            workers.
        """
        # So that no other worker waits for this one's updates while this one waits for the end.
        self._idle()
        answer, sums = self._ask_first("finish", list(added.values()), names=list(added))
        self._round += 1
        self._clocks = dict.fromkeys(self._clocks, 0)
        return {
            name: (total, answer["counts"][name])
            for name, total in zip(answer["names"], sums, strict=True)
        }

    def share(self, arrays: Sequence[Array]) -> list[Array]:
        """Returns worker 0's arrays, on every worker."""
        mine = list(arrays) if self._asking.rank == 0 else []
        _, shared = self._ask_first("share", mine, number=self._shared)
        self._shared += 1
        return mine or [np.asarray(array) for array in shared]

    def leave(self) -> None:
        """Tells the servers that this worker will ask no more questions."""
        self._ask_all("leave", [({}, [])] * self.count)

    @property
    def rounds(self) -> int:
        """The number of rounds that this worker has ended."""
        return self._round

    # -- helpers -----------------------------------------------------------------------------------

    def _idle(self) -> None:
        self._ask_all("idle", [({}, [])] * self.count, round=self._round)

    def _ask_first(self, ask: str, arrays: Sequence[Array] = (), **fields: Any) -> Message:
        # The ranks of servers follow those of the workers.
        first = self._workers
        question = {"ask": ask, "round": self._round, **fields}
        return self._asking.ask({first: (question, list(arrays))})[first]

    def _ask_all(self, ask: str, parts: Sequence[Message], **fields: Any) -> list[Message]:
        questions = {
            self._workers + server: ({"ask": ask, **fields, **mine}, arrays)
            for server, (mine, arrays) in enumerate(parts)
        }
        return list(self._asking.ask(questions).values())
