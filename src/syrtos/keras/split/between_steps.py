"""Numbers that a script changes between steps: a weight of a term that a callback raises, a temperature that falls.

The term may have counted for nothing in all batches that were compared so far, so the next one is compared too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from syrtos.comm.world import Session
from syrtos.keras import keras_internals
from syrtos.keras.split.python_state import numbers_of

# Changes that are looked into, however long that takes: a script may count its epochs in such a number.
_MOST_CHANGES = 8
_MOST_ELEMENTS = 16


class NumbersBetweenSteps:
    """The numbers of a model, its parts and the script that are no states of layers, and whether they have changed."""

    def __init__(self, model: Any, session: Session) -> None:
        self._model, self._session = model, session
        self._before: dict[str, list[float]] | None = None
        self._left = _MOST_CHANGES

    def note(self) -> None:
        """Notes the numbers as they are now."""
        if self._left:
            self._before = dict(_numbers(self._model))

    def have_changed(self) -> bool:
        """Returns whether they are others than when they were noted last, on any worker, and notes them. All workers ask together."""
        if not self._left:
            return False
        before = self._before
        self.note()
        own = before is not None and self._before != before
        changed = any(self._session.comm.agree("have numbers of the script changed?", float(own)))
        self._left -= changed
        return changed


def _numbers(model: Any) -> Iterator[tuple[str, list[float]]]:
    parts = [model, *keras_internals.layers_of(model), *keras_internals.compiled_parts(model)]
    for index, part in enumerate(parts):
        for name, value in getattr(part, "__dict__", {}).items():
            if not name.startswith("_") and (found := _small_number(value, variables_only=False)):
                yield f"{index} {name}", found
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if found := _small_number(value, variables_only=True):
            yield name, found


def _small_number(value: Any, variables_only: bool) -> list[float] | None:
    """Returns a number of Python's, or the values of a small variable that nothing trains; None of anything else."""
    if isinstance(value, int | float):
        return None if variables_only else [float(value)]
    if not hasattr(value, "assign") or not hasattr(value, "shape"):
        return None
    inner: Any = value.value() if callable(getattr(value, "value", None)) else getattr(value, "value", None)
    found = numbers_of(inner.numpy() if hasattr(inner, "assign") else inner)  # Keras 3 holds a variable of TensorFlow
    return found.ravel().tolist() if found is not None and found.size <= _MOST_ELEMENTS else None
