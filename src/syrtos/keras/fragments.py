"""`--outer-fragments F`: changes of weights travel while workers train on, a part of the variables at a time.

After each H / F steps a worker takes in the fragment whose change was sent so many steps before, and sends the next one: so each of F fragments is exchanged
every H steps, a link carries something all the time, and nobody waits unless the link needs longer than H / F steps. The pattern (every F-th variable, one
fragment after the other) and the delay are those of Streaming DiLoCo (Douillard et al. 2025, arXiv:2501.18512, sections 2.2 and 2.3). What a worker has learnt
while its change was on its way it keeps, as in Overlap Local-SGD (Wang et al. 2020, arXiv:2002.09539): nothing is mixed by a factor of its own.
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
    """A fragment on its way: its variables by number, their values when it was sent, and what comes back."""

    indices: range
    values: list[Array]
    answer: Future[tuple[list[Array], bool]]


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
        self._comm = world.beside("outer")
        self._anchors: list[Array] = []
        self._sent: _Sent | None = None
        self._calls = self._next = 0
        self._samples: list[float] = []  # of this worker, since each fragment was sent

    def begin(self, anchors: list[Array]) -> None:
        """All workers hold ``anchors``, which are changed from now on."""
        self._anchors, self._calls, self._next = anchors, 0, 0
        self._samples = [0.0] * self._count

    def batch_ended(self, steps: int, samples: float, asks: bool) -> bool:
        """After so many steps since the last meeting; ``samples`` of this worker in the last. Returns whether all are to meet now: it is time, or a worker
        has asked for it (``asks``) before it sent a fragment."""
        self._samples = [before + samples for before in self._samples]
        if steps // self._every == self._calls:
            return False
        self._calls = steps // self._every
        asked = self.land()
        if not asked and self._calls < ROUNDS * self._count:
            self._send(asks)
            return False
        return True

    def land(self) -> bool:
        """Takes in the fragment that is on its way, if there is one; returns whether a worker has asked to meet."""
        if self._sent is None:
            return False
        sent, self._sent = self._sent, None
        with world.current().ledger.span("wait"):
            means, asked = sent.answer.result()
        for index, value, mean in zip(sent.indices, sent.values, means, strict=True):
            variable, new = self._weights[index], self._step(index, self._anchors[index], mean)
            backend.active().write(variable, state.memory_of(variable) + (new - value))
            self._anchors[index] = new
        return asked

    def _send(self, asks: bool) -> None:
        indices = range(self._next, len(self._weights), self._count)
        values = [np.array(state.memory_of(self._weights[i])) for i in indices]
        changes = [self._anchors[i] - value for i, value in zip(indices, values, strict=True)]
        samples, self._samples[self._next] = self._samples[self._next], 0.0
        held = state.held([self._weights[i] for i in indices])

        def exchange() -> tuple[list[Array], bool]:
            asked = any(self._comm.agree("a fragment; meet?", float(asks)))
            return compression.mean_in_buckets(self._comm, changes, samples, held), asked

        self._sent = _Sent(indices, values, self._comm.background.submit(exchange))
        self._next = (self._next + 1) % self._count
