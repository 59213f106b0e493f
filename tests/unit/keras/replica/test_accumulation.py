"""Accumulated gradients keep their sum whichever kind they become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest

from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.keras import updates
from syrtos.keras.replica import accumulation
from syrtos.records import record_of


def accumulating(value: float) -> Any:
    """A model whose optimizer has accumulated one step."""
    model: Any = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=3))
    model.optimizer.build(model.trainable_variables)
    model.optimizer._iterations.assign(1)
    for variable in model.optimizer._accumulated_gradients:
        variable.assign(np.full(variable.shape, value))
    return model


def values(model: Any) -> float:
    found = {float(x) for v in model.optimizer._accumulated_gradients for x in np.ravel(v.numpy())}
    assert len(found) == 1
    return found.pop()


def after(together: Any, models: Sequence[Any], *steps: Any) -> list[float]:
    """What each worker has accumulated once all have made these calls."""

    def play(comm: InProcessCommunicator) -> float:
        for step in steps:
            step(comm, models[comm.rank])
        return values(models[comm.rank])

    return together(len(models), play)


def whole(comm: InProcessCommunicator, model: Any) -> None:
    accumulation.note_kind(comm, model, of_whole_batches=True)


def own(comm: InProcessCommunicator, model: Any) -> None:
    accumulation.note_kind(comm, model, of_whole_batches=False)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((), [1.0, 2.0, 4.0]),
        ((accumulation.gather,), [7.0, 0.0, 0.0]),
        ((accumulation.begin,), [1.0, 2.0, 4.0]),
        ((whole,), [7.0, 7.0, 7.0]),
        ((whole, whole), [7.0, 7.0, 7.0]),
        ((whole, accumulation.gather, accumulation.begin), [7.0, 7.0, 7.0]),
        ((whole, own), [7.0, 0.0, 0.0]),
        ((own, whole, own, accumulation.gather), [7.0, 0.0, 0.0]),
    ],
)
def test_the_sum_over_workers_stays(
    together: Any, steps: Sequence[Any], expected: list[float]
) -> None:
    assert after(together, [accumulating(v) for v in (1.0, 2.0, 4.0)], *steps) == expected


def test_gradients_that_all_have_loaded_from_one_file_count_once(together: Any) -> None:
    assert after(together, [accumulating(5.0), accumulating(5.0)], accumulation.begin) == [5.0, 0.0]
    assert after(together, [accumulating(5.0), accumulating(5.0)], accumulation.begin, whole) == [
        5.0,
        5.0,
    ]


def test_rank_0_restores_gradients_of_whole_batches_for_all(together: Any) -> None:
    models = [accumulating(3.0), accumulating(3.0)]

    def restore(comm: InProcessCommunicator, model: Any) -> None:
        for variable in model.optimizer._accumulated_gradients if comm.rank == 0 else ():
            variable.assign(np.full(variable.shape, 8.0))

    for model in models:
        record_of(model.optimizer, updates.OptimizerRecord).accumulates_whole_batches = True
    assert after(together, models, restore, accumulation.begin) == [8.0, 8.0]


def test_optimizers_beside_that_of_compile_are_noted_too(together: Any) -> None:
    models = [accumulating(1.0), accumulating(2.0)]
    for model in models:
        model.own = model.optimizer
        model.compile("sgd")

    def play(comm: InProcessCommunicator) -> float:
        whole(comm, models[comm.rank])
        return float(models[comm.rank].own._accumulated_gradients[0].numpy()[0, 0])

    assert together(2, play) == [3.0, 3.0]
    assert not any(accumulation.are_added_up(model.own) for model in models)


def test_an_update_leaves_nothing_to_convert(together: Any) -> None:
    models = [accumulating(1.0), accumulating(2.0)]
    for model in models:
        model.optimizer._iterations.assign(3)
    assert after(together, models, whole, accumulation.gather) == [1.0, 2.0]
