"""The graph of a loss: its parameters, and what its step is estimated to compute."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

from syrtos.keras.torch import backward_graphs


def operations(loss: torch.Tensor) -> float:
    return sum(map(backward_graphs._operations, backward_graphs._nodes_of(loss)))


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Linear(8, 5), (4, 8), 2 * 4 * 8 * 5),
        (nn.Conv2d(3, 6, 3, padding=1), (2, 3, 7, 7), 2 * 2 * 49 * 6 * 27),
        (nn.Conv2d(4, 8, 3, groups=2), (2, 4, 5, 5), 2 * 2 * 9 * 8 * 18),
        (nn.LSTM(8, 5, batch_first=True), (2, 3, 8), 0),
        (nn.Embedding(9, 4), None, 0),
    ],
)
def test_the_operations_of_a_layer(
    layer: nn.Module, shape: tuple[int, ...] | None, expected: int
) -> None:
    given = torch.tensor([1, 2]) if shape is None else torch.ones(shape)
    found = layer(given)
    loss = (found[0] if isinstance(found, tuple) else found).sum()
    assert operations(loss) == pytest.approx(expected)


def test_the_operations_of_attention() -> None:
    q, k = (torch.ones((2, 3, length, 8), requires_grad=True) for length in (5, 7))
    loss = functional.scaled_dot_product_attention(q, k, k).sum()
    assert operations(loss) == 4 * 2 * 3 * 5 * 7 * 8


def test_frozen_operands_are_counted() -> None:
    frozen = nn.Linear(8, 5).requires_grad_(False)
    assert operations(frozen(torch.ones((4, 8), requires_grad=True)).sum()) == 2 * 4 * 8 * 5


def test_parameters_are_those_of_the_graph_each_once() -> None:
    used, other = nn.Linear(3, 3), nn.Linear(3, 3)
    loss = used(used(torch.ones((2, 3)))).sum() + other(torch.ones((2, 3))).detach().sum()
    found = backward_graphs.parameters_of(loss)
    assert {id(p) for p in found} == {id(p) for p in used.parameters()}
    assert len(found) == 2


def test_a_large_model_is_split_and_a_small_one_is_not() -> None:
    rows = torch.ones((256, 1024))
    large = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))
    assert backward_graphs.saves_time(large(rows).sum(), 2)
    assert not backward_graphs.saves_time(nn.Linear(8, 8)(rows[:, :8]).sum(), 2)
    # A graph that computes nothing by a rule that is known.
    assert not backward_graphs.saves_time([rows.requires_grad_().exp().sum()], 2)
