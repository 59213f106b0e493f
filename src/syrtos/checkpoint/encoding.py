"""Parts of a snapshot as bytes: arrays and JSON in the format of safetensors.

Nothing in a part is executed when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from syrtos.checkpoint.head import FACTS

Arrays = dict[str, npt.NDArray[Any]]


class NotStorable(TypeError):
    """A Python value has no form in a snapshot."""


def pack(arrays: Mapping[str, npt.NDArray[np.generic]], facts: Mapping[str, object]) -> bytes:
    """Returns a part as bytes, from arrays of any dtype that NumPy knows, and JSON facts."""
    return b"".join(pieces(arrays, facts))


def pieces(
    arrays: Mapping[str, npt.NDArray[np.generic]], facts: Mapping[str, object]
) -> list[memoryview]:
    """Returns a part as pieces that follow each other: its head, and then each array's memory.

    The memory is not copied. The arrays may not change until the pieces are written. The library
    would copy all of them into one piece, which takes three times as long as writing them.
    """
    storable = {name: _storable_array(array) for name, array in arrays.items()}
    # The format (README of huggingface/safetensors) has the bytes of the arrays behind each other
    # without gaps: in this order each begins at a multiple of its own size.
    ready = dict(sorted(storable.items(), key=lambda item: -item[1].itemsize))
    head: dict[str, object] = {"__metadata__": {FACTS: json.dumps(facts)}}
    begin = 0
    for name, array in ready.items():
        offsets = [begin, begin := begin + array.nbytes]
        head[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": array.shape,
            "data_offsets": offsets,
        }
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    first = memoryview(len(text).to_bytes(8, "little") + text)
    return [first, *(array.reshape(-1).view(np.uint8).data for array in ready.values())]


def unpack(part: bytes) -> Arrays:
    """Returns the arrays of a part.

    Complex arrays, and those of dtypes of other packages (bfloat16), are bytes.
    """
    # their dtype is told by whoever has packed them: see `as_dtype`
    return safetensors.numpy.load(part)


# The dtypes that safetensors knows, by NumPy's names, with its own; arrays of others are stored as
# their bytes.
_NAMES = {
    "bool": "BOOL",
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}


def _storable_array(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Returns the same values in order, little-endian.

    They are bytes where safetensors has no name for the dtype.
    """
    ready = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return (
        ready.reshape(array.shape)
        if ready.dtype.name in _NAMES
        else ready.reshape(-1).view(np.uint8)
    )


def _is_of_numbers(dtype: np.dtype[np.generic]) -> bool:
    """Returns whether the dtype is one of numbers and has a name by which it is found again.

    Such dtypes are NumPy's own, or of `ml_dtypes`.
    """
    try:
        return dtype.kind in "biufcV" and dtype.names is None and np.dtype(dtype.name) == dtype
    except TypeError:
        return False


# -- Python values ---------------------------------------------------------------------------------


def encode(value: object, arrays: Arrays, first: int = 0) -> object:
    """Returns a value as JSON, and adds the arrays in it to ``arrays``.

    The names of the arrays are numbered from ``first`` on.

    Raises:
        NotStorable: it is, or holds, something else than numbers, texts, arrays, lists, tuples,
            sets and dictionaries.
    """
    # exact types: an enumeration or a subclass of `dict` would come back as something else
    if (
        value is None
        or type(value) in (bool, float, str)
        or (type(value) is int and value.bit_length() < 1024)
    ):
        return value
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return _encode_array(np.asarray(value), isinstance(value, np.generic), arrays, first)
    if type(value) is dict:
        pairs: dict[object, object] = value
        # pairs, since JSON's own objects have no other keys than texts
        return {
            "dict": [[encode(k, arrays, first), encode(v, arrays, first)] for k, v in pairs.items()]
        }
    for kind in (list, tuple, set):
        if type(value) is kind:
            items: Iterable[object] = value
            return {kind.__name__: [encode(item, arrays, first) for item in items]}
    raise NotStorable(type(value).__name__)


def _encode_array(
    array: npt.NDArray[np.generic], scalar: bool, arrays: Arrays, first: int
) -> object:
    if not _is_of_numbers(array.dtype):
        raise NotStorable(str(array.dtype))
    name = f"value {first + len(arrays)}"
    arrays[name] = array
    return {
        "scalar" if scalar else "array": name,
        "dtype": array.dtype.name,
        "shape": list(array.shape),
    }


def decode(encoded: object, arrays: Mapping[str, npt.NDArray[np.generic]]) -> Any:
    """Returns the value that `encode` was given."""
    if not isinstance(encoded, dict):
        return encoded
    found: dict[str, Any] = encoded
    for kind in (list, tuple, set):
        if kind.__name__ in found:
            return kind(decode(item, arrays) for item in found[kind.__name__])
    if "dict" in found:
        return {decode(k, arrays): decode(v, arrays) for k, v in found["dict"]}
    name = found.get("array", found.get("scalar"))
    array = as_dtype(arrays[str(name)], np.dtype(found["dtype"])).reshape(found["shape"])
    return array[()] if "scalar" in found else array


def as_dtype(array: npt.NDArray[np.generic], dtype: np.dtype[np.generic]) -> npt.NDArray[Any]:
    """Returns an array that `unpack` gave in the dtype that it was packed with."""
    return array if array.dtype == dtype else array.reshape(-1).view(dtype)
