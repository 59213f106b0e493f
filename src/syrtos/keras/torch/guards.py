"""Checks of a number of a step for NaN and infinity, by which scripts leave out a batch.

Where the rows of one worker alone are not finite, it would leave out the step that the others make. All workers answer
such a check alike, as one process does, whose number is of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from syrtos.keras import patching
from syrtos.keras.torch.step import current_step

_Answers = Callable[[Sequence[float]], float]
# How the workers' answers become one.
_CHECKS: dict[str, _Answers] = {"isfinite": min, "isinf": max, "isnan": max}


def install() -> None:
    """Makes the checks of torch, as functions and as methods of tensors, have one answer in a step that is split."""
    for name, combine in _CHECKS.items():
        for owner in (torch, torch.Tensor):
            patching.replace(owner, name, lambda original, n=name, c=combine: _answered_alike(original, n, c))


def _answered_alike(original: Callable[..., Any], name: str, combine: _Answers) -> Callable[..., Any]:
    def check(*args: object, **kwargs: object) -> Any:
        answer = original(*args, **kwargs)
        step = current_step()
        if step is None or step.session.comm.size == 1 or answer.dim():
            return answer
        # A worker without samples has no say: its row does not count.
        mine = float(answer) if step.samples else float(name == "isfinite")
        return torch.full_like(answer, bool(combine(step.session.comm.agree(f"is a number of the step: {name}", mine))))

    return check
