"""Finds what a step of the script's own decides by a number of this worker's rows.

Torch has no graph to read that in: what the step calls of
torch is watched while it is tried on some rows.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from syrtos.keras.split.script_lines import line_of_script

# Functions whose result is no smooth function of a number, without the underscores around their
# names.
_DECIDE = frozenset((
    "abs", "argmax", "argmin", "bool", "ceil", "clamp", "clamp_max", "clamp_min", "clip", "eq", "floor", "ge", "gt",
    "hardtanh", "isfinite", "isinf", "isnan", "le", "lt", "max", "maximum", "min", "minimum", "ne", "relu", "round", "sign", "threshold", "where",
))  # fmt: skip
# These divide by their second argument, or by their first: a sum over chosen rows by how many were
# chosen.
_DIVIDE, _DIVIDE_BACK = (
    frozenset(("div", "divide", "itruediv", "true_divide", "truediv")),
    "rtruediv",
)
# The same of rows that a mask has chosen. Sums over rows have forgotten how many there were.
_CHOOSE, _FORGET = (
    frozenset(("getitem", "masked_select", "nonzero")),
    frozenset(("all", "any", "max", "min", "prod", "sum")),
)
# Functions of `math` and of NumPy by which steps are left out.
_GUARDS = ("isfinite", "isinf", "isnan")
_MOST_BYTES = 1 << 20  # of a tensor that is followed
_OF_TORCH = str(Path(torch.__file__).parent)


class Watching(TorchFunctionMode):
    """Notes the first function by which the script decides by a number computed from some rows.

    It watches the calls within the context.

    Attributes:
        found: such as ``clamp in train.py, line 7``; empty while there is none.
    """

    def __init__(self, rows: Iterable[object]) -> None:
        """``rows``: tensors of this worker's share, and what else the batch has."""
        super().__init__()
        self.found = ""
        self._chosen: dict[int, torch.Tensor] = {}
        self._guards = contextlib.ExitStack()
        self._followed = {id(leaf): leaf for leaf in rows if isinstance(leaf, torch.Tensor)}

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Calls a torch function, and follows its results if it was given rows or their numbers."""
        result = func(*args, **(kwargs or {}))
        given = [
            leaf for leaf in keras.tree.flatten((args, kwargs or {})) if id(leaf) in self._followed
        ]
        name = getattr(func, "__name__", "").strip("_")
        if given and name == "item" and type(result) is float:
            return _Number.of(result, self)
        if given:
            by_number = name in _DIVIDE and any(isinstance(one, _Number) for one in args[1:])
            if (
                by_number
                or any(leaf.dim() == 0 for leaf in _deciding(name, given, args))
                or self._means_over_chosen(name, args, result)
            ):
                self.note(name)
            for leaf in keras.tree.flatten(result):
                if isinstance(leaf, torch.Tensor) and leaf.nbytes <= _MOST_BYTES:
                    # It is kept, so that no other tensor gets its id.
                    self._followed[id(leaf)] = leaf
        return result

    def _means_over_chosen(self, name: str, args: tuple[object, ...], result: object) -> bool:
        """Returns whether a function is a mean over rows a mask has chosen; follows such rows."""
        leaves = [leaf for leaf in keras.tree.flatten(args) if isinstance(leaf, torch.Tensor)]
        chooses = name in _CHOOSE and any(leaf.dtype == torch.bool for leaf in leaves)
        if not chooses and (
            name in _FORGET or not any(id(leaf) in self._chosen for leaf in leaves)
        ):
            return False
        made = [leaf for leaf in keras.tree.flatten(result) if isinstance(leaf, torch.Tensor)]
        if name == "mean":
            return any(leaf.dim() == 0 for leaf in made)
        # They are kept, so that no other tensor gets their ids.
        self._chosen |= {id(leaf): leaf for leaf in made}
        return False

    def __enter__(self) -> Watching:
        # Of functions of Python and NumPy torch sees no more than that they ask for the number.
        for module in (math, np):
            for name in _GUARDS:
                guard = getattr(module, name)
                self._guards.callback(setattr, module, name, guard)
                setattr(module, name, self._wrap_guard(guard))
        return super().__enter__()

    def _wrap_guard(self, guard: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if args and (isinstance(args[0], _Number) or id(args[0]) in self._followed):
                self.note(guard.__name__)
            return guard(*args, **kwargs)

        return call

    def __exit__(self, *exception: object) -> None:
        self._guards.close()
        # A number of the step may outlive it, and holds this object.
        self._followed.clear()
        self._chosen.clear()
        super().__exit__(*exception)

    def note(self, name: str) -> None:
        """Notes a function, where it is the first and the script calls it."""
        if not self.found:
            line = line_of_script(_calls(), _OF_TORCH, "torch")
            self.found = f"{name} in {line}" if line else ""


class _Number(float):
    """A number of Python's that a step has taken from a tensor of its rows.

    A function that compares the number decides by it.
    """

    watching: Watching
    # Python takes the hash away from a class that gets an `__eq__`, as this one does below.
    __hash__ = float.__hash__

    def __reduce__(self) -> tuple[type, tuple[float]]:
        # What is stored, or sent to another process, is a plain number: a watch of this process
        # means nothing there.
        return float, (float(self),)

    @classmethod
    def of(cls, value: float, watching: Watching) -> _Number:
        """Returns ``value`` as a number that tells ``watching`` of comparisons."""
        made = cls(value)
        made.watching = watching
        return made


def _comparison(name: str) -> Callable[..., bool]:
    def compare(number: _Number, *other: object) -> bool:
        number.watching.note(name)
        return getattr(float, f"__{name}__")(number, *other)

    return compare


def _arithmetic(name: str) -> Callable[..., object]:
    def compute(number: _Number, *others: object) -> object:
        result = getattr(float, f"__{name}__")(number, *others)
        # `NotImplemented`, and a complex power, stay as they are.
        return _Number.of(result, number.watching) if type(result) is float else result

    return compute


for _name in ("bool", "eq", "ge", "gt", "le", "lt", "ne"):
    setattr(_Number, f"__{_name}__", _comparison(_name))
_ARITHMETIC = "add radd sub rsub mul rmul truediv rtruediv floordiv mod pow neg abs"
for _name in _ARITHMETIC.split():
    setattr(_Number, f"__{_name}__", _arithmetic(_name))


def _deciding(
    name: str, given: Sequence[torch.Tensor], args: tuple[object, ...]
) -> Sequence[torch.Tensor]:
    """Returns the tensors by which a function decides.

    These are the condition alone for ``where``, and the divisor for a division.
    """
    if name == "where" or name == _DIVIDE_BACK:
        return [leaf for leaf in given if leaf is args[0]]
    if name in _DIVIDE:
        return [leaf for leaf in given if len(args) > 1 and leaf is args[1]]
    return given if name in _DECIDE else ()


def _calls() -> Iterator[tuple[str, int]]:
    """Yields file and line of each call that led to a function of torch, the innermost first."""
    # The first four frames are this generator, its reader, `note` and what calls it.
    frame = sys._getframe(4)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
