"""Plain data there and back, and nothing else."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrtos.comm.objects import from_bytes, to_bytes
from syrtos.errors import ExchangeError

_leaves = (
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False)
)
_keys = st.text() | st.integers() | st.tuples(st.text(), st.integers()) | st.just("!")
_values = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(_keys, inner)
        | st.sets(st.integers() | st.text() | st.frozensets(st.integers()))
    ),
)


@given(_values)
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    back = from_bytes(to_bytes(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "dtype", [np.float32, ml_dtypes.bfloat16, np.int8, bool, np.complex64, "U3", "datetime64[s]"]
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_arrays_come_back_as_they_were(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.ones(shape).astype("int64").astype(dtype)
    back = from_bytes(to_bytes({"it": [array]}))["it"][0]
    assert (back.dtype, back.shape) == (array.dtype, shape)
    np.testing.assert_array_equal(back, array)
    back[...] = array  # one's own to change


def test_numbers_of_numpy_stay_numbers_of_numpy() -> None:
    back = from_bytes(to_bytes([np.float32(1.5), np.int64(3)]))
    assert [type(number) for number in back] == [np.float32, np.int64]
    assert back == [1.5, 3]


@pytest.mark.parametrize(
    "value",
    [
        object(),
        [object()],
        lambda: None,
        np.array([object()]),
        np.zeros(2, "i4,f4"),
        {1: {2: print}},
    ],
)
def test_other_objects_are_refused(value: object) -> None:
    with pytest.raises(ExchangeError, match=r"never pickled.*Send what the object is made from"):
        to_bytes(value)


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16]
)
def test_small_floats_stay_what_they_are(dtype: Any) -> None:
    back = from_bytes(to_bytes(np.asarray([0.5, 2.0], dtype)))
    assert back.dtype == dtype
    assert back.astype(np.float32).tolist() == [0.5, 2.0]


def test_memory_without_a_type_is_refused() -> None:
    with pytest.raises(ExchangeError, match="plain data"):
        to_bytes(np.zeros(2, "V8"))
