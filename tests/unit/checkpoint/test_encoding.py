"""Arrays and Python values as bytes, without pickle."""

from __future__ import annotations

import collections
import enum
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.checkpoint.encoding import (
    Arrays,
    NotStorable,
    as_dtype,
    decode,
    encode,
    pack,
    pieces,
    unpack,
)
from syrtos.checkpoint.head import facts_of

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.tuples(inner, inner)
    ),
)


@given(VALUES)
def test_python_values_survive(value: Any) -> None:
    arrays: Arrays = {}
    part = pack(arrays, {"value": encode(value, arrays)})
    assert repr(decode(facts_of(part)["value"], unpack(part))) == repr(value)


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        "float16",
        "longdouble",
        "int64",
        "uint8",
        "bool",
        "complex64",
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e5m2,
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_arrays_survive_with_dtype_and_shape(dtype: Any, shape: tuple[int, ...]) -> None:
    value = np.ones(shape, dtype)
    arrays: Arrays = {}
    facts = {"best": encode([value], arrays)}
    part = pack(arrays, facts)
    (found,) = decode(facts_of(part)["best"], unpack(part))
    assert (found.dtype, found.shape, found.tobytes()) == (
        value.dtype,
        value.shape,
        value.tobytes(),
    )


def test_a_variable_of_a_dtype_from_elsewhere_is_bytes_until_its_dtype_is_told() -> None:
    value = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    found = unpack(pack({"weight": value.T}, {}))["weight"]
    assert as_dtype(found, value.dtype).reshape(3, 2).tolist() == value.T.tolist()


def test_numbers_of_numpy_stay_what_they_are() -> None:
    arrays: Arrays = {}
    found = decode(encode({"lr": np.float32(0.1)}, arrays), arrays)["lr"]
    assert type(found) is np.float32
    assert found == np.float32(0.1)


class Mode(enum.IntEnum):
    MIN = 1


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
RECORDS = np.zeros(2, [("a", "f4"), ("b", "i4")])


@pytest.mark.parametrize(
    "value",
    [
        object(),
        [open],
        {"model": object()},
        np.array(["text"]),
        b"bytes",
        Mode.MIN,
        collections.Counter("a"),
        RECORDS,
        10**400,
        np.ma.array([1]),
    ],
)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(NotStorable):
        encode(value, {})


def test_what_holds_itself_is_refused() -> None:
    with pytest.raises(RecursionError):
        encode(CYCLE, {})


def test_facts_are_found_in_the_beginning_of_a_part() -> None:
    part = pack({"large": np.zeros(10**6)}, {"place": 3})
    assert facts_of(part[:10_000]) == {"place": 3}


def test_pieces_are_the_arrays_themselves_each_at_a_multiple_of_its_size() -> None:
    arrays: Arrays = {"flag": np.ones(3, bool), "weight": np.arange(6.0).reshape(2, 3)}
    head, *own = pieces(arrays, {"place": 3})
    shared = [
        name
        for piece in own
        for name, array in arrays.items()
        if np.shares_memory(array, np.asarray(piece))
    ]
    assert shared == ["weight", "flag"]
    assert len(head) % 8 == 0
    found = unpack(b"".join([head, *own]))
    assert {name: (array.dtype, array.tolist()) for name, array in found.items()} == {
        name: (array.dtype, array.tolist()) for name, array in arrays.items()
    }


def test_bytes_in_the_other_order_are_turned() -> None:
    assert unpack(pack({"weight": np.arange(3, dtype=">f4")}, {}))["weight"].tolist() == [0, 1, 2]
