"""Numbers that a script changes between steps.

Examples are the weight of a term that a callback raises, and a temperature that falls. The term may
have counted for nothing in all batches that were compared so far, so the next one is compared too.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeGuard

import numpy as np

from syrtos.comm.world import Session
from syrtos.keras import keras_internals
from syrtos.keras.split import keras_origin
from syrtos.keras.split.held_numbers import numbers_of
from syrtos.keras.split.tensors import EagerTensor

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model

# Changes that are looked into. A script may count its epochs in such a number, which would make
# comparisons due without end, so there is a limit.
_MOST_CHANGES = 8
# Elements of a variable that is taken for a number: larger ones are states or data.
_MOST_ELEMENTS = 16


class _Assignable(Protocol):
    """A variable of Keras or of a framework."""

    shape: tuple[int, ...]

    def assign(self, value: object, /) -> object: ...


class NumbersBetweenSteps:
    """Watches numbers of a model and a script that change between steps, e.g. weights of losses."""

    def __init__(self, model: Model, session: Session) -> None:
        """
        Args:
            model: whose numbers, and those of its layers, losses and metrics, are looked at.
            session: the workers.
        """
        self._model, self._session = model, session
        self._before: dict[str, list[float]] | None = None
        self._left = _MOST_CHANGES

    def note(self) -> None:
        """Notes the numbers as they are now."""
        if self._left:
            self._before = dict(_numbers(self._model))

    def have_changed(self) -> bool:
        """Returns whether the numbers differ from those noted last, on any worker.

        It notes the numbers as they are now. All workers call this together.
        """
        if not self._left:
            return False
        before = self._before
        self.note()
        own = before is not None and self._before != before
        changed = any(self._session.comm.agree("have numbers of the script changed?", float(own)))
        self._left -= changed
        return changed


@contextlib.contextmanager
def zeros_raised(model: Model, reads_attributes: bool) -> Iterator[list[str]]:
    """Context manager: small variables that are 0 are 1 inside; yields their names.

    Such a variable may weigh a term that counts for nothing now, and that a callback raises later.
    Trained variables and states of metrics stay as they are.

    Args:
        model: whose variables, and those of its layers, its losses and the script, are looked at.
        reads_attributes: whether each step reads attributes of objects anew, so that numbers of
            Python's count too.
    """
    found = {(id(zero.holder), zero.name): zero for zero in _zeros(model, reads_attributes)}
    try:
        for zero in found.values():
            zero.become(1.0)
        yield [zero.name for zero in found.values()]
    finally:
        for zero in found.values():
            zero.become(0.0)


class _Zero(NamedTuple):
    """A number that is 0: of a variable, or an attribute of an object of the script's own class."""

    holder: object
    name: str
    become: Callable[[float], object]


def _zeros(model: Model, reads_attributes: bool) -> Iterator[_Zero]:
    trained: set[int] = set()
    # Keras 2 refuses to list those of a model that is not built.
    with contextlib.suppress(ValueError):
        trained = {id(variable) for variable in model.trainable_variables}
    parts = [
        part
        for part in _parts(model)
        if hasattr(part, "__dict__") and not hasattr(part, "update_state")
    ]
    for part in [*parts, main := sys.modules["__main__"]]:
        # Keras's own classes keep rates and the like in such attributes.
        has_own = reads_attributes and part is not main and not keras_origin.is_of_keras(type(part))
        for name, value in list(vars(part).items()):
            numbers = _small_number(value, variables_only=True)
            if (
                numbers
                and not any(numbers)
                and id(value) not in trained
                and "float" in str(value.dtype)
            ):
                yield _Zero(value, name, functools.partial(_assign, value))
            elif has_own and type(value) is float and value == 0.0 and not name.startswith("_"):
                yield _Zero(part, name, functools.partial(setattr, part, name))


def _assign(variable: _Assignable, number: float) -> None:
    variable.assign(np.full(tuple(variable.shape), number))


def _numbers(model: Model) -> Iterator[tuple[str, list[float]]]:
    # By their places, since names of layers and losses need not be unique.
    for index, part in enumerate(_parts(model)):
        for name, value in getattr(part, "__dict__", {}).items():
            if not name.startswith("_") and (found := _small_number(value, variables_only=False)):
                yield f"{index} {name}", found
    # A copy: another thread of the script may assign a name meanwhile.
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if found := _small_number(value, variables_only=True):
            yield name, found


def _parts(model: Model) -> list[object]:
    """Returns a model, its layers, and the losses and metrics that it was compiled with."""
    return [model, *keras_internals.layers_of(model), *keras_internals.compiled_parts(model)]


def _small_number(value: object, variables_only: bool) -> list[float] | None:
    """Returns a number of Python's, or the values of a small variable, as float64; else None.

    ``variables_only``: whether numbers of Python's count as nothing.
    """
    if isinstance(value, int | float):
        return None if variables_only else [float(value)]
    if not hasattr(value, "assign") or not hasattr(value, "shape"):
        return None
    held = getattr(value, "value", None)  # a property of Keras 3, and a method of TensorFlow
    inner = held() if callable(held) else held
    # On TensorFlow Keras 3 holds a variable, which is no tensor.
    found = numbers_of(inner.numpy() if _is_variable(inner) else inner)
    return found.ravel().tolist() if found is not None and found.size <= _MOST_ELEMENTS else None


def _is_variable(value: object) -> TypeGuard[EagerTensor]:
    return hasattr(value, "assign")
