"""The state in Python that a step changes beside its variables.

It is in numbers, lists and dictionaries of a model, of its parts and of the script, and in generators of random
numbers.
"""

from __future__ import annotations

import collections
import contextlib
import io
import random
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

import numpy as np

from syrtos.keras import keras_internals

_PLAIN = (int, float, str, bytes, type(None), np.generic)
# Containers with more elements than these are data of the script, which a step reads.
_LARGEST = 10_000
_DEPTH = 3


@contextlib.contextmanager
def keeping_python_state(model: Any, generators: bool = True) -> Iterator[None]:
    """Context manager: restores, at its end, numbers, texts and containers that a model, its parts and the script hold.

    Attributes that were made on a built model meanwhile are removed. What is printed meanwhile is not shown.

    Args:
        model: the one whose step runs inside.
        generators: whether the global generators of NumPy and Python are restored too.
    """
    parts = [model, *keras_internals.layers_of(model), *model.metrics]
    known = set(vars(model)) if getattr(model, "built", False) else None
    kept = [_Values(vars(part), lambda name, value, part=part: object.__setattr__(part, name, value)) for part in parts]
    script = vars(sys.modules["__main__"])
    kept.append(_Values(script, script.__setitem__))
    drawn = np.random.get_state(), random.getstate()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        made = [name for name in vars(model) if known is not None and name not in known and not name.startswith("_")]
        for name in made:
            delattr(model, name)  # e.g. an optimizer that a step makes when it has none
        for values in kept:
            values.restore()
        if generators:
            np.random.set_state(drawn[0])
            random.setstate(drawn[1])


class _Values:
    """The values of a namespace that Python code changes without a trace elsewhere."""

    def __init__(self, names: MutableMapping[str, Any], assign: Callable[[str, Any], None]) -> None:
        self._names, self._assign = names, assign
        self._plain = {name: value for name, value in names.items() if isinstance(value, _PLAIN)}
        self._containers: dict[int, tuple[Any, Any]] = {}
        for value in names.values():
            self._keep(value, _DEPTH)

    def _keep(self, value: Any, depth: int) -> None:
        if (
            not depth
            or id(value) in self._containers
            or not isinstance(value, tuple(_RESTORE))
            or len(value) > _LARGEST
        ):
            return
        if isinstance(value, np.ndarray):
            if value.flags.writeable:
                self._containers[id(value)] = value, value.copy()
            return
        self._containers[id(value)] = value, _plain_copy(value)
        for child in value.values() if isinstance(value, dict) else value:
            self._keep(child, depth - 1)

    def restore(self) -> None:
        """Gives names and containers the values that they had."""
        for name, value in self._plain.items():
            if name in self._names and self._names[name] is not value:
                self._assign(name, value)
        for container, before in self._containers.values():
            if not _is_equal(container, before) and not _holds_layers(container):
                next(restore for kind, restore in _RESTORE.items() if isinstance(container, kind))(container, before)


def _plain_copy(container: Any) -> Any:
    """Returns a copy without the tracking that Keras's own lists and dictionaries have."""
    kind = next(kind for kind in _RESTORE if isinstance(container, kind))
    return kind(container)


def _is_equal(container: Any, before: Any) -> bool:
    """Returns whether a container has the same elements as before; arrays among them are compared by identity."""
    if isinstance(container, np.ndarray | set | bytearray):
        return bool(np.array_equal(container, before)) if isinstance(container, np.ndarray) else container == before
    if len(container) != len(before):
        return False
    if isinstance(container, dict):
        return all(name in before and before[name] is value for name, value in container.items())
    return all(one is other for one, other in zip(container, before, strict=True))


def _holds_layers(container: Any) -> bool:
    """Returns whether a container holds layers, metrics, optimizers or variables.

    It keeps those that a step has made.
    """
    if isinstance(container, np.ndarray | bytearray):
        return False
    values: Iterable[Any] = container.values() if isinstance(container, dict) else container
    return any(hasattr(value, "variables") or hasattr(value, "assign") for value in values)


def _restore_list(container: list[Any], before: list[Any]) -> None:
    list.__setitem__(container, slice(None), before)


def _restore_dict(container: dict[Any, Any], before: dict[Any, Any]) -> None:
    dict.clear(container)
    dict.update(container, before)


def _restore_set(container: set[Any], before: set[Any]) -> None:
    set.clear(container)
    set.update(container, before)


def _restore_deque(container: collections.deque[Any], before: Iterable[Any]) -> None:
    container.clear()
    container.extend(before)


def _restore_bytes(container: bytearray, before: bytes) -> None:
    container[:] = before


def _restore_array(container: Any, before: Any) -> None:
    container[...] = before


_RESTORE: dict[type, Callable[[Any, Any], None]] = {
    list: _restore_list,
    dict: _restore_dict,
    set: _restore_set,
    collections.deque: _restore_deque,
    bytearray: _restore_bytes,
    np.ndarray: _restore_array,
}
