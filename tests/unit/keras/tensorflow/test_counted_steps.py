"""Samples of steps that one worker computes alone, counted in the graph of a function of several steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from syrtos.keras.tensorflow.counted_steps import CountedSteps


class Ledger:
    """Notes what it is told, in place of a ledger with a file."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self.spent: list[tuple[str, float]] = []

    def count(self, samples: float) -> None:
        self.samples.append(samples)

    def spend(self, kind: str, seconds: float) -> None:
        self.spent.append((kind, seconds))


@pytest.mark.parametrize("eager", [False, True])
def test_each_call_tells_its_own_samples(eager: bool) -> None:
    ledger: Any = Ledger()
    session: Any = SimpleNamespace(ledger=ledger)
    functions = []
    for _ in ("training", "evaluation"):  # which take turns, and count apart
        counted = CountedSteps(session)
        step = counted.counting(lambda data: tf.nest.flatten(data)[0])

        def two_steps(iterator: Any, step: Any = step) -> Any:
            step(next(iterator))
            return step(next(iterator))

        functions.append(counted.telling(two_steps if eager else tf.function(two_steps)))
    x = np.arange(11, dtype="float32")
    batches = iter(tf.data.Dataset.from_tensor_slices((x, x)).batch(4).repeat())
    for function in (functions[0], functions[1], functions[0]):
        function(batches)
    assert ledger.samples == [8, 7, 7]
    assert [kind for kind, _ in ledger.spent] == ["input"] * 3
    assert all(seconds >= 0 for _, seconds in ledger.spent)
