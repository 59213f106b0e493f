"""Samples of steps that one worker computes alone, and the seconds for which they wait for data, counted in their graphs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from syrtos.keras.tensorflow import tf_internals_iterators
from syrtos.keras.tensorflow.counted_steps import count_in_graph, report_after


class Ledger:
    """Notes what it is told, in place of a ledger with a file."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self.spent: list[float] = []

    def count(self, samples: float) -> None:
        self.samples.append(samples)

    def spend(self, kind: str, seconds: float) -> None:
        assert kind == "input"
        self.spent.append(seconds)


@pytest.fixture
def noting_when_data_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes graphs note it, as in a run, until the test ends."""
    monkeypatch.setattr(
        iterators := tf_internals_iterators.iterator_ops.OwnedIterator,
        "_next_internal",
        iterators._next_internal,
    )
    tf_internals_iterators.watch_iterators.__wrapped__(contextlib.nullcontext)


def function_of(
    ledger: Ledger, draw: Callable[[Any], Any], steps: int = 1, eager: bool = False
) -> Callable[[Any], object]:
    session: Any = SimpleNamespace(ledger=ledger)
    step: Any = count_in_graph(lambda data: tf.nest.flatten(data)[0])

    def run(iterator: Any) -> object:
        return [step(draw(iterator)) for _ in range(steps)]

    return report_after(session, run if eager else tf.function(run))


@pytest.mark.parametrize("eager", [False, True])
def test_each_call_tells_its_own_samples(eager: bool) -> None:
    ledger = Ledger()
    training, evaluation = (function_of(ledger, next, steps=2, eager=eager) for _ in range(2))
    x = np.arange(11, dtype="float32")
    batches = iter(tf.data.Dataset.from_tensor_slices((x, x)).batch(4).repeat())
    for function in (training, evaluation, training):  # which take turns
        function(batches)
    assert ledger.samples == [8, 7, 7]


def slow_batches() -> Iterator[np.ndarray[Any, Any]]:
    while True:
        time.sleep(0.05)
        yield np.zeros(3, np.float32)


@pytest.mark.usefixtures("noting_when_data_is_asked_for")
def test_waiting_for_data_is_counted_and_nothing_else() -> None:
    ledger = Ledger()
    batches = iter(
        tf.data.Dataset.from_generator(
            slow_batches, output_signature=tf.TensorSpec((3,), tf.float32)
        )
    )
    asking = function_of(ledger, next)
    asking(batches)
    asking(batches)
    assert ledger.spent[1] > 0.02
    # Graphs of several steps draw in this way. The time since another graph has asked is none that they have waited.
    time.sleep(0.1)
    function_of(ledger, lambda iterator: iterator.get_next_as_optional().get_value())(batches)
    assert ledger.spent[2] == 0
