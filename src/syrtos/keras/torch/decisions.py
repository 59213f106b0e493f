"""Finds what a step of the script's own decides by a number of this worker's rows: see `syrtos.keras.tensorflow.decisions`.

There is no graph to read. What the step calls of torch is watched while it is tried on some rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import keras
import torch
from torch.overrides import TorchFunctionMode

from syrtos.keras.split.script_lines import line_of_script

# Functions whose result is no smooth function of a number, without the underscores around their names.
_DECIDE = frozenset((
    "abs", "argmax", "argmin", "bool", "ceil", "clamp", "clamp_max", "clamp_min", "clip", "eq", "floor", "ge", "gt", "hardtanh", "le", "lt", "max",
    "maximum", "min", "minimum", "ne", "relu", "round", "sign", "threshold", "where",
))  # fmt: skip
# Scripts guard against divergence by these. Where only one worker skips a step for it, the others miss it in an exchange, which is an error.
_GUARDS = frozenset(("isfinite", "isinf", "isnan"))
_MOST_BYTES = 1 << 20  # of a tensor that is followed
_OF_TORCH = str(Path(torch.__file__).parent)


class Watching(TorchFunctionMode):
    """Notes the first function by which the script decides by a number of some rows, within the context.

    Attributes:
        found: such as ``clamp in train.py, line 7``; empty while there is none.
    """

    def __init__(self, rows: Iterable[Any]) -> None:
        """``rows``: tensors of this worker's share, and what else the batch has."""
        super().__init__()
        self.found = ""
        self._followed = {id(leaf): leaf for leaf in rows if isinstance(leaf, torch.Tensor)}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls a function of torch, and follows its results where it was given rows or their numbers."""
        result = func(*args, **(kwargs or {}))
        given = [leaf for leaf in keras.tree.flatten((args, kwargs or {})) if id(leaf) in self._followed]
        name = getattr(func, "__name__", "").strip("_")
        if given and name not in _GUARDS:
            if not self.found and name in _DECIDE and any(leaf.dim() == 0 for leaf in _deciding(name, given, args)):
                line = line_of_script(_calls(), _OF_TORCH, "torch")
                self.found = f"{name} in {line}" if line else ""
            for leaf in keras.tree.flatten(result):
                if isinstance(leaf, torch.Tensor) and leaf.nbytes <= _MOST_BYTES:
                    self._followed[id(leaf)] = leaf  # is kept, so that no other tensor gets its id
        return result


def _deciding(name: str, given: list[torch.Tensor], args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Returns those tensors by which a function decides: of ``where`` the condition alone."""
    return [leaf for leaf in given if leaf is args[0]] if name == "where" else given


def _calls() -> Iterator[tuple[str, int]]:
    """Yields the file and the line of each call that led to a function of torch, from the innermost on."""
    frame = sys._getframe(3)  # without this generator, its reader and `__torch_function__`
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
