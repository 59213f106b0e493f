"""What a callback changes is seen; what stays, and what layers keep, is not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras

from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.keras.split import between_steps
from syrtos.keras.split.between_steps import NumbersBetweenSteps


class Annealed(keras.Model):
    """A model with a weight of a term, as a number and as a variable."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.weight_of_term: Any = 0.0
        self.temperature: Any = keras.Variable(1.0, trainable=False)
        self.table: Any = keras.Variable([0.0] * 20, trainable=False)


def test_changes_are_seen_by_all_workers(together: Callable[..., list[Any]]) -> None:
    def seen(comm: InProcessCommunicator) -> list[bool]:
        model, found = Annealed(), []
        numbers = NumbersBetweenSteps(model, SimpleNamespace(comm=comm))  # type: ignore[arg-type]

        def change(part: Any, name: str, value: Any) -> None:
            if comm.rank == 0:  # a callback of rank 0 alone
                setattr(part, name, value) if name == "weight_of_term" else part.assign(value)
            found.append(numbers.have_changed())

        numbers.note()
        change(model, "weight_of_term", 0.0)
        change(model, "weight_of_term", 1.0)
        change(model.temperature, "value", 0.5)
        change(model.temperature, "value", 0.5)
        change(model.table, "value", [1.0] * 20)  # too large to be a weight of a term
        return found

    assert together(2, seen) == [[False, True, True, False, False]] * 2


def test_a_number_that_changes_in_each_epoch_is_looked_into_a_few_times(
    together: Callable[..., list[Any]],
) -> None:
    def seen(comm: InProcessCommunicator) -> int:
        model = Annealed()
        numbers = NumbersBetweenSteps(model, SimpleNamespace(comm=comm))  # type: ignore[arg-type]
        numbers.note()
        found = 0
        for epoch in range(1, 30):
            model.weight_of_term = epoch
            found += numbers.have_changed()
        return found

    assert together(2, seen) == [between_steps._MOST_CHANGES] * 2


def test_zeros_that_may_weigh_a_term_are_raised_for_a_while() -> None:
    class Penalty(keras.losses.Loss):
        def __init__(self) -> None:
            super().__init__()
            self.share: Any = keras.Variable([0.0, 0.0], trainable=False)

    model, loss = Annealed(), Penalty()
    model.count = keras.Variable(0, trainable=False, dtype="int32")
    model.dense.build((None, 3))
    model.compile("sgd", loss, metrics=["mae"])
    weights = [weight.numpy() for weight in model.weights]
    with between_steps.zeros_raised(model, reads_attributes=True) as names:
        assert sorted(names) == ["share", "weight_of_term"], (
            "not what is trained, counts, is large, or is not 0"
        )
        assert model.weight_of_term == 1.0
        assert loss.share.numpy().tolist() == [1.0, 1.0]
    assert (model.weight_of_term, loss.share.numpy().tolist()) == (0.0, [0.0, 0.0])
    with between_steps.zeros_raised(model, reads_attributes=False) as names:
        assert names == ["share"]
    for weight, before in zip(model.weights, weights, strict=True):
        assert (weight.numpy() == before).all()
