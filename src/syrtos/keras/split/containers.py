"""Python and NumPy containers that a script holds: copies, and how their elements are put back."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

# Values that hold no others.
PLAIN = (int, float, str, bytes, type(None), np.generic)
# What is put back element by element, so that all who hold such a container see the elements of
# before.
KINDS = (list, dict, set, collections.deque, bytearray, np.ndarray)
# One of `KINDS`, or of a class derived from one of them, such as Keras's own lists.
Container = (
    list[object]
    | dict[object, object]
    | set[object]
    | collections.deque[object]
    | bytearray
    | npt.NDArray[np.generic]
)


def plain_copy(container: Container) -> Container:
    """Returns a copy of Python's or NumPy's own class, without the tracking of Keras's classes."""
    return _kind_of(container)(container)


def is_equal(container: Container, before: Container) -> bool:
    """Returns whether a container has the same elements as a copy of it.

    Elements of lists, deques and dictionaries are compared by identity, those of sets and NumPy's
    arrays by value.
    """
    if isinstance(container, np.ndarray):
        return bool(np.array_equal(container, np.asarray(before)))
    if isinstance(container, set | bytearray):
        return container == before
    if len(container) != len(before):
        return False
    # By identity, since `==` of two arrays or tensors is an array.
    if isinstance(container, dict):
        return isinstance(before, dict) and all(
            k in before and before[k] is value for k, value in container.items()
        )
    return all(one is other for one, other in zip(container, before, strict=True))


def restore(container: Container, before: Container) -> None:
    """Gives a container the elements of the copy that `plain_copy` has made of it."""
    _RESTORE[_kind_of(container)](container, before)


def holds_layers(container: object) -> bool:
    """Returns whether a value is a container of layers, metrics, optimizers or variables."""
    if not isinstance(container, dict | list | tuple | set | collections.deque):
        return False
    values: Iterable[object] = container.values() if isinstance(container, dict) else container
    return any(map(is_layer, values))


def is_layer(value: object) -> bool:
    """Returns whether a value is a layer, a metric, an optimizer or a variable."""
    return hasattr(value, "variables") or hasattr(value, "assign")


def _kind_of(container: Container) -> type:
    return next(kind for kind in KINDS if isinstance(container, kind))


# The methods are those of Python's own classes, since those of Keras's classes track what is added.


def _restore_list(container: list[object], before: list[object]) -> None:
    # Keras 2 wraps a model's lists: what they hold stands in `_storage`.
    list.__setitem__(getattr(container, "_storage", container), slice(None), before)


def _restore_dict(container: dict[object, object], before: dict[object, object]) -> None:
    inner = getattr(container, "__wrapped__", container)  # of Keras 2's `_DictWrapper`
    if isinstance(inner, collections.OrderedDict):  # which has an order of its own
        inner.clear()
        inner.update(before)
        return
    dict.clear(inner)
    dict.update(inner, before)


def _restore_set(container: set[object], before: set[object]) -> None:
    set.clear(container)
    set.update(container, before)


def _restore_deque(container: collections.deque[object], before: Iterable[object]) -> None:
    container.clear()
    container.extend(before)


def _restore_bytes(container: bytearray, before: bytes) -> None:
    container[:] = before


def _restore_array(container: npt.NDArray[np.generic], before: npt.NDArray[np.generic]) -> None:
    container[...] = before


_RESTORE: Mapping[type, Callable[..., None]] = {
    list: _restore_list,
    dict: _restore_dict,
    set: _restore_set,
    collections.deque: _restore_deque,
    bytearray: _restore_bytes,
    np.ndarray: _restore_array,
}
