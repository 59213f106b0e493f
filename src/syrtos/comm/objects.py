"""Python values as bytes and back, without pickle: nothing that arrives can run code.

Values are of JSON's types, or tuples, sets, bytes, dicts with any such key, and NumPy arrays and
numbers: those travel as tagged JSON objects.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from syrtos.errors import ExchangeError

_TAG = "!"


def dtype_of(name: str) -> np.dtype[Any]:
    """Returns the dtype of this name, NumPy's or of ``ml_dtypes`` (``bfloat16``, 8-bit floats)."""
    return np.dtype(getattr(ml_dtypes, name, name))


def to_bytes(value: Any) -> npt.NDArray[np.uint8]:
    """Returns a value as bytes.

    Raises:
        ExchangeError: the value holds something of another type.
    """
    try:
        return np.frombuffer(bytearray(json.dumps(_add_tags(value)).encode()), np.uint8)
    except (TypeError, ValueError) as error:
        raise ExchangeError(
            "Objects travel as plain data (str, int, float, bool, None, bytes, list, tuple, set,"
            f" dict, NumPy arrays), never pickled: {error}. Send what the object is made from."
        ) from error


def from_bytes(data: npt.NDArray[np.uint8]) -> Any:
    """Returns the value that `to_bytes` was given."""
    return json.loads(data.tobytes(), object_hook=_remove_tag)


def _add_tags(value: Any) -> Any:
    if isinstance(value, list):
        return [_add_tags(item) for item in value]
    if isinstance(value, dict) and _TAG not in value and all(type(key) is str for key in value):
        return {key: _add_tags(item) for key, item in value.items()}
    for name, (kind, encode, _) in _KINDS.items():
        if isinstance(value, kind):
            return {_TAG: name, "v": encode(value)}
    return value


def _remove_tag(found: dict[str, Any]) -> Any:
    return _KINDS[found[_TAG]][2](found["v"]) if _TAG in found else found


def _array(value: Any) -> list[Any]:
    value = np.asarray(value)
    own = hasattr(ml_dtypes, value.dtype.name)
    if value.dtype.hasobject or (value.dtype.kind == "V" and not own):
        raise TypeError("an array of Python objects or records")
    data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    name = value.dtype.name if own else value.dtype.str
    return [name, list(value.shape), base64.b64encode(data.tobytes()).decode()]


def _from_array(parts: list[Any]) -> Any:
    name, shape, text = parts
    return np.frombuffer(bytearray(base64.b64decode(text)), dtype_of(name)).reshape(shape)


_KINDS: dict[str, tuple[type | tuple[type, ...], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tuple": (tuple, lambda value: [_add_tags(item) for item in value], tuple),
    "set": (set, lambda value: [_add_tags(item) for item in value], set),
    "frozenset": (frozenset, lambda value: [_add_tags(item) for item in value], frozenset),
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    "dict": (
        dict,
        lambda value: [[_add_tags(key), _add_tags(item)] for key, item in value.items()],
        dict,
    ),
    "number": (np.generic, _array, lambda parts: _from_array(parts)[()]),
    "array": (np.ndarray, _array, _from_array),
}
