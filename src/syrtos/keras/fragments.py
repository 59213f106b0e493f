"""`--outer-fragments F`: changes of weights travel while workers train on, a part of the variables at a time.

After each H / F steps a worker takes in the fragment whose change was sent H / F steps before, and sends the next one.
So each of F fragments is exchanged every H steps, a link carries something all the time, and nobody waits unless the
link needs longer than H / F steps. The pattern (every F-th variable, one fragment after the other) and the delay are
those of Streaming DiLoCo (Douillard et al. 2025, arXiv:2501.18512, sections 2.2 and 2.3). A worker keeps what it has
learnt while its change was on its way, as in Overlap Local-SGD (Wang et al. 2020, arXiv:2002.09539): nothing is mixed
by a factor of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from syrtos.comm import compression, world
from syrtos.comm.communicator import Array
from syrtos.keras import backend, state

# Rounds after which all workers meet and hold the same weights: only then snapshots are made and replicas compared.
ROUNDS = 8


@dataclasses.dataclass
class _Sent:
    """A fragment on its way.

    Attributes:
        indices: the numbers of its variables.
        values: their values when the fragment was sent.
        means: their mean changes, once they are there, and whether a worker has asked to meet.
    """

    indices: range
    values: list[Array]
    means: Future[tuple[list[Array], bool]]


class Fragments:
    """The exchanges of one `fit` between two meetings."""

    def __init__(self, weights: Sequence[Any], step: Callable[[int, Array, Array], Array]) -> None:
        """
        Args:
            weights: the variables that are trained.
            step: the outer optimizer: from the number of a variable, its value and its mean change to its new value.
        """
        options = world.current().options
        self._weights, self._step = weights, step
        self._count, self._every = options.outer_fragments, options.sync_every // options.outer_fragments
        self._comm = world.thread_communicator("outer")
        self._comm.background.settle()  # of an earlier `fit` that has failed
        compression.choose_codec(
            self._comm, state.held_objects(weights)
        )  # which may measure the link, by all workers together
        self._anchors: list[Array] = []
        self._sent: _Sent | None = None
        self._turns = 0
        self._samples_when_sent: dict[int, float] = {}  # by fragment, since the meeting

    def begin(self, anchors: list[Array]) -> None:
        """Begins after a meeting: all workers hold ``anchors``, which are changed from now on."""
        self._anchors, self._turns, self._samples_when_sent = anchors, 0, {}

    def batch_ended(self, steps: int, samples: float, asks: bool) -> bool:
        """Exchanges a fragment, if it is time, after a call of the training function.

        Args:
            steps: those made since the meeting.
            samples: those of this worker since the meeting.
            asks: whether this worker asks to meet.

        Returns:
            Whether all are to meet now: it is time, or a worker has asked for it before it sent a fragment.
        """
        if steps // self._every == self._turns:
            return False
        self._turns = steps // self._every
        asked = self.land()
        if not asked and self._turns < ROUNDS * self._count:
            self._send((self._turns - 1) % self._count, samples, asks)
            return False
        return True

    def land(self) -> bool:
        """Takes in the fragment that is on its way, if there is one; returns whether a worker has asked to meet."""
        if self._sent is None:
            return False
        sent, self._sent = self._sent, None
        with world.current().ledger.span("wait"):
            means, asked = sent.means.result()
        for index, value, mean in zip(sent.indices, sent.values, means, strict=True):
            variable, new = self._weights[index], self._step(index, self._anchors[index], mean)
            backend.active().write(variable, state.memory_of(variable) + (new - value))
            self._anchors[index] = new
        return asked

    def since_sent(self, samples: float) -> list[tuple[range, float, bool]]:
        """Returns what has been trained since each fragment was sent.

        Args:
            samples: those of this worker since the meeting.

        Returns:
            For each fragment the numbers of its variables, this worker's samples since it was sent, and whether it was
            sent since the meeting.
        """
        sent = self._samples_when_sent
        return [(self._indices(f), samples - sent.get(f, 0.0), f in sent) for f in range(self._count)]

    def _indices(self, fragment: int) -> range:
        return range(fragment, len(self._weights), self._count)

    def _send(self, fragment: int, samples: float, asks: bool) -> None:
        indices = self._indices(fragment)
        values = [np.array(state.memory_of(self._weights[i])) for i in indices]
        changes = [self._anchors[i] - value for i, value in zip(indices, values, strict=True)]
        weight = samples - self._samples_when_sent.get(fragment, 0.0)
        self._samples_when_sent[fragment] = samples
        held = state.held_objects([self._weights[i] for i in indices])

        def exchange() -> tuple[list[Array], bool]:
            asked = any(self._comm.agree("a fragment; meet?", float(asks)))
            return compression.mean_in_buckets(self._comm, changes, weight, held), asked

        self._sent = _Sent(indices, values, self._comm.background.submit(exchange))
