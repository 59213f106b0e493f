"""Numbers that a script changes between steps: a weight of a term that a callback raises, a temperature that falls.

The term may have counted for nothing in all batches that were compared so far, so the next one is compared too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeGuard

from syrtos.comm.world import Session
from syrtos.keras import keras_internals
from syrtos.keras.split.held_numbers import numbers_of
from syrtos.keras.split.tensors import EagerTensor

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model

# Changes that are looked into. A script may count its epochs in such a number, which would make comparisons due without
# end, so there is a limit.
_MOST_CHANGES = 8
# Elements of a variable that is taken for a number: larger ones are states or data.
_MOST_ELEMENTS = 16


class NumbersBetweenSteps:
    """The numbers of a model, its parts and the script that are no states of layers, and whether they have changed."""

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
        """Returns whether the numbers differ from those noted last, on any worker, and notes them as they are now.

        All workers call this together.
        """
        if not self._left:
            return False
        before = self._before
        self.note()
        own = before is not None and self._before != before
        changed = any(self._session.comm.agree("have numbers of the script changed?", float(own)))
        self._left -= changed
        return changed


def _numbers(model: Model) -> Iterator[tuple[str, list[float]]]:
    # By their places, since names of layers and losses need not be unique.
    parts = [model, *keras_internals.layers_of(model), *keras_internals.compiled_parts(model)]
    for index, part in enumerate(parts):
        for name, value in getattr(part, "__dict__", {}).items():
            if not name.startswith("_") and (found := _small_number(value, variables_only=False)):
                yield f"{index} {name}", found
    # A copy: another thread of the script may assign a name meanwhile.
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if found := _small_number(value, variables_only=True):
            yield name, found


def _small_number(value: object, variables_only: bool) -> list[float] | None:
    """Returns a number of Python's, or the values of a small variable, as float64; None of anything else.

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
