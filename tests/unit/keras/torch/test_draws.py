"""Draws of a step on torch by a seed that all workers share, found while the step runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

ROWS = 5


def found_in(step: Callable[[Any, Any], Any], by_rank: bool = True) -> str:
    """Returns what is found in a step that takes Keras's functions and a generator of its own."""
    from syrtos.keras.torch import torch_internals
    from syrtos.keras.torch.draws import Recorder

    recorder = Recorder()
    with recorder.noting():
        step(torch_internals.random_functions_of_keras(), torch.Generator().manual_seed(3))
    found = [draw for draw in recorder.draws if draw.has_rows(ROWS)]
    return next((d.name for d in found if d.has_shared_seed or (d.is_of_keras and not by_rank)), "")


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (lambda k, g: torch.rand(ROWS, 3, generator=g), "torch.rand"),
        (lambda k, g: torch.randperm(ROWS, generator=g), "torch.randperm"),
        (lambda k, g: torch.empty(ROWS, 2).normal_(generator=g), "torch.normal_"),
        (lambda k, g: k.normal((ROWS, 2), seed=5), "keras.random.normal"),
        (lambda k, g: k.dropout(torch.ones(ROWS, 2), 0.5, seed=5), "keras.random.dropout"),
    ],
)
def test_draws_for_rows_by_a_shared_seed_are_found(step: Any, name: str) -> None:
    assert found_in(step) == name


@pytest.mark.parametrize(
    "step",
    [
        lambda k, g: torch.rand(ROWS, 3),  # each worker has a generator of its own
        lambda k, g: torch.rand(3, ROWS, generator=g),
        lambda k, g: torch.rand((), generator=g),
        lambda k, g: k.normal((3, 2), seed=5),
        lambda k, g: torch.ones(ROWS),
    ],
)
def test_other_draws_are_none(step: Any) -> None:
    assert found_in(step) == ""


@pytest.mark.parametrize("is_default", [True, False])
def test_draws_by_a_generator_of_keras_count_in_predictions_alone(is_default: bool) -> None:
    import keras

    generator = None if is_default else keras.random.SeedGenerator(1)

    def step(of_keras: Any, _: Any) -> None:
        of_keras.normal((ROWS, 2), seed=generator)

    assert found_in(step) == ""
    assert found_in(step, by_rank=False) == "keras.random.normal"


def test_weights_are_drawn_alike_on_all_workers() -> None:
    import keras

    def step(of_keras: Any, _: Any) -> None:
        def initializer(shape: Any, dtype: Any) -> Any:
            drawn.append(of_keras.normal(shape, seed=5))
            return keras.ops.zeros(shape, dtype)

        keras.Variable(initializer, shape=(ROWS, 2), dtype="float32")

    drawn: list[Any] = []
    assert found_in(step) == ""
    assert drawn


def test_functions_are_what_they_were_afterwards() -> None:
    before = torch.rand, torch.Tensor.normal_
    found_in(lambda k, g: None)
    assert (torch.rand, torch.Tensor.normal_) == before
