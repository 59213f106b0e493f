from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")


def decision(step: Callable[[Any], Any]) -> str:
    """Returns what is found in a step that takes eight rows of three numbers."""
    from syrtos.keras.torch.decisions import Watching

    with Watching([x := torch.arange(24.0).reshape(8, 3)]) as watching:
        step(x)
    return watching.found


def test_a_mean_that_is_compared_is_found_with_its_line() -> None:
    assert decision(lambda x: torch.clamp(x.mean(), min=1.0)).startswith(
        "clamp in test_decisions.py, line "
    )


@pytest.mark.parametrize(
    "step",
    [
        lambda x: 1.0 if x.sum() > 2.0 else 0.0,
        lambda x: torch.where(x.sum() > 2.0, x, 0.0 * x),
        lambda x: x[x > x.mean()],  # rows against a number
        lambda x: torch.nn.functional.relu(x.mean() - 1.0),
        lambda x: torch.abs(x.T.reshape(-1).mean()),
        lambda x: torch.maximum(x.mean().detach(), torch.tensor(1.0)),
        lambda x: 1 if x.mean().bool() else 2,
        lambda x: 1 if x.mean().item() > 2.0 else 2,  # as Python's number
        lambda x: max(0.5 * x.mean().item() + 1.0, 2.0),
        lambda x: x.sum() / (x[:, 0] > 0.5).sum(),  # a mean over chosen rows
        lambda x: x.sum() / (x[:, 0] > 0.5).sum().float().item(),
        lambda x: x[x[:, 0] > 0.5].square().mean(),
        lambda x: torch.masked_select(x, x > 0.5).mean(),
        lambda x: (
            1 if torch.isnan(x.mean()) else 2
        ),  # a guard, for which one worker alone would leave out a step
        lambda x: 1 if torch.isfinite(x).all() else 2,
        lambda x: 1 if x.isnan().any() else 2,
        lambda x: 1 if math.isnan(x.mean().item()) else 2,
        lambda x: 1 if math.isfinite(x.mean()) else 2,
        lambda x: 1 if np.isinf(x.mean().item()) else 2,
    ],
)
def test_a_number_that_decides_is_found(step: Callable[[Any], Any]) -> None:
    assert "test_decisions.py" in decision(step)


def _clipped(x: Any) -> Any:
    weight = torch.nn.Parameter(torch.ones(3))
    (x * weight).mean().backward()
    return torch.nn.utils.clip_grad_norm_([weight], 1.0)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: torch.clamp(x, min=1.0).mean(),  # of rows
        lambda x: x.mean() * 2.0 + (x * x).sum().sqrt(),  # a comparison shows these
        lambda x: x.sum() / max(len(x), 1),
        lambda x: (x / x.sum(dim=1, keepdim=True)).mean(),  # of a row
        lambda x: x[x[:, 0] > 0.5].sum(),
        lambda x: x[x[:, 0] > 0.5].mean(dim=1),
        lambda x: torch.clamp(torch.tensor(2.0), min=1.0) * x,
        lambda x: [x.mean().item() / 2.0, math.isnan(2.0), f"{x.mean().item():.2f}"],
        _clipped,  # by gradients, which the workers have exchanged
    ],
)
def test_what_decides_nothing_by_a_part_is_not(step: Callable[[Any], Any]) -> None:
    assert decision(step) == ""
