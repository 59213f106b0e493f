"""Questions of workers to servers over MPI.

A worker waits for its answer, and a server may answer later. Messages are point-to-point, never
collective: the death of a worker delays no answer to another. A message is plain data as JSON,
followed by arrays as raw bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from syrtos.comm.arrays import Array, contiguous
from syrtos.comm.mpi import as_bytes
from syrtos.comm.objects import dtype_of, from_bytes, to_bytes
from syrtos.comm.watchdog import Watchdog
from syrtos.errors import ExchangeError

_QUESTION, _QUESTION_ARRAYS, _ANSWER, _ANSWER_ARRAYS = 1, 2, 3, 4
# Seconds between two checks for dead workers, and the sleep of an idle server.
_LOOK_EVERY = 0.2
_NAP = 2e-4

Fields = dict[str, Any]
Message = tuple[Fields, list[Array]]


class Asking:
    """A worker's side of the questions.

    Threads may ask concurrently: a lock lets one question through at a time.
    """

    def __init__(self, comm: MPI.Comm, watchdog: Watchdog) -> None:
        self._comm = comm
        self._watchdog = watchdog
        self._turn = threading.Lock()
        self._asked = 0
        self.rank = comm.Get_rank()

    def ask(self, questions: Mapping[int, Message]) -> dict[int, Message]:
        """Asks several servers, given by rank, at the same time.

        Raises:
            ExchangeError: a server could not answer.
            StalledError: an answer did not come within the watchdog's time.
        """
        with self._turn:
            self._asked += 1
            sent = [
                _send(self._comm, server, _QUESTION, {**fields, "id": self._asked}, arrays)
                for server, (fields, arrays) in questions.items()
            ]
            answers = {
                server: self._answer(server, str(questions[server][0]["ask"]))
                for server in questions
            }
            # MPI reads from the arrays until they have arrived: they must live until here.
            del sent
        for fields, _ in answers.values():
            if "error" in fields:
                raise ExchangeError(fields["error"])
        return answers

    def _answer(self, server: int, call: str) -> Message:
        incoming: list[_Incoming] = []

        def has_arrived() -> bool:
            if not incoming:
                incoming.extend(_probe(self._comm, server, _ANSWER))
            if not incoming or not incoming[0].complete():
                return False
            if incoming[0].fields["id"] == self._asked:
                return True
            # This is the answer to a question that was given up.
            incoming.clear()
            return False

        self._watchdog.wait(has_arrived, call, self.rank)
        return incoming[0].fields, incoming[0].arrays


@dataclasses.dataclass
class Question:
    """A question of one worker.

    Attributes:
        worker: the rank of the worker.
        fields: plain data; ``"ask"`` names the kind of question.
        arrays: the arrays of the question.
        reply: sends the answer.
    """

    worker: int
    fields: Fields
    arrays: list[Array]
    reply: Callable[[Fields, Sequence[Array]], None]

    def answer(self, arrays: Sequence[Array] = (), **fields: Any) -> None:
        """Answers the question; to be called once."""
        self.reply(fields, arrays)


def serve(
    comm: MPI.Comm,
    workers: int,
    handle: Callable[[Question], None],
    gone: Callable[[], set[int]],
    lose: Callable[[int], None],
) -> None:
    """Answers questions until every worker has left or is gone.

    Args:
        comm: all workers and servers; the workers are its first ranks.
        workers: the number of workers.
        handle: answers a question, now or at a later one.
        gone: returns the workers that have died so far.
        lose: called once for each worker that has died or asked to ``leave``.
    """
    left: set[int] = set()
    # Messages of dead workers are kept: MPI may still use their memory.
    buried: list[Any] = []
    incoming: list[_Incoming] = []
    outgoing: list[_Outgoing] = []
    looked = time.monotonic()
    while len(left) < workers or outgoing:
        begun = _probe(comm, MPI.ANY_SOURCE, _QUESTION)
        incoming += begun
        complete = [one for one in incoming if one.complete()]
        incoming = [one for one in incoming if one not in complete]
        for one in complete:
            question = Question(
                one.source, one.fields, one.arrays, _replier(comm, one, left, outgoing)
            )
            if one.fields["ask"] == "leave":
                question.answer()
                left.add(one.source)
                lose(one.source)
            else:
                with refusing(question):
                    handle(question)
        if time.monotonic() - looked > _LOOK_EVERY:
            looked = time.monotonic()
            dead = gone() - left
            left |= dead
            for worker in dead:
                lose(worker)
            buried += [one for one in incoming if one.source in left] + [
                one for one in outgoing if one.target in dead
            ]
            incoming = [one for one in incoming if one.source not in left]
            outgoing[:] = [one for one in outgoing if one.target not in dead]
        outgoing[:] = [one for one in outgoing if not one.complete()]
        if not begun and not complete:
            time.sleep(_NAP)


@contextlib.contextmanager
def refusing(*questions: Question) -> Iterator[None]:
    """Context manager: answers all of ``questions`` with the error that is raised in it."""
    try:
        yield
    except Exception as error:
        # a worker that is not answered would wait until the watchdog ends it
        for question in questions:
            question.answer(
                error=f"A parameter server could not answer `{question.fields['ask']}`: {error}"
            )


def _replier(
    comm: MPI.Comm, asked: _Incoming, left: set[int], outgoing: list[_Outgoing]
) -> Callable[[Fields, Sequence[Array]], None]:
    def reply(fields: Fields, arrays: Sequence[Array]) -> None:
        # it would never be received, and the server would wait for that
        if asked.source not in left:
            outgoing.append(
                _send(
                    comm, asked.source, _ANSWER, {**fields, "id": asked.fields["id"]}, list(arrays)
                )
            )

    return reply


class _Outgoing:
    """A message on its way; its memory must live until it has arrived."""

    def __init__(self, target: int, kept: list[Array], requests: list[MPI.Request]) -> None:
        self.target = target
        self._kept = kept
        self._requests = requests

    def complete(self) -> bool:
        return MPI.Request.Testall(self._requests)


class _Incoming:
    """A message whose head is here and whose arrays are coming."""

    def __init__(
        self, source: int, fields: Fields, arrays: list[Array], requests: list[MPI.Request]
    ) -> None:
        self.source = source
        self.fields = fields
        self.arrays = arrays
        self._requests = requests

    def complete(self) -> bool:
        return MPI.Request.Testall(self._requests)


def _send(comm: MPI.Comm, target: int, tag: int, fields: Fields, arrays: list[Array]) -> _Outgoing:
    arrays = [contiguous(array) for array in arrays]
    head = to_bytes(
        {"fields": fields, "arrays": [[array.dtype.name, list(array.shape)] for array in arrays]}
    )
    requests = [comm.Isend(head, target, tag)]
    requests += [comm.Isend(as_bytes(array), target, tag + 1) for array in arrays]
    return _Outgoing(target, [head, *arrays], requests)


def _probe(comm: MPI.Comm, source: int, tag: int) -> list[_Incoming]:
    """Returns the next message, if its head is here: a list of one or none."""
    status = MPI.Status()
    found = comm.Improbe(source, tag, status)
    if found is None:
        return []
    head = np.empty(status.Get_count(MPI.BYTE), np.uint8)
    found.Recv(head)
    message = from_bytes(head)
    arrays = [np.empty(shape, dtype_of(name)) for name, shape in message["arrays"]]
    requests = [comm.Irecv(as_bytes(array), status.Get_source(), tag + 1) for array in arrays]
    return [_Incoming(status.Get_source(), message["fields"], arrays, requests)]
