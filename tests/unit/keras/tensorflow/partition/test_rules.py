"""Each rule against the operation on whole tensors: placements, numbers of workers, uneven rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import programs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operations import OPERATIONS, Operation

from syrtos.comm.arrays import Array
from syrtos.keras.tensorflow.partition.values import Replicated

pytestmark = [
    pytest.mark.needs("tensorflow"),
    pytest.mark.skipif(not programs.HAS_THREADS, reason="TensorFlow has begun to compute"),
]


def _array(shape: tuple[int | str, ...], kind: str, rows: int, seed: int) -> Array:
    draws = np.random.default_rng(seed)
    sizes = [rows if n == "n" else int(n) for n in shape]
    if kind == "i":
        return draws.integers(0, 5, sizes).astype("int32")
    if kind == "b":
        return draws.random(sizes) < 0.7
    # Halves, of which sums and products are exact: their order rounds nothing.
    return (draws.integers(-6, 7, sizes) / 2).astype("float32")


def _inputs(operation: Operation, rows: int, seed: int) -> list[Array]:
    kinds = operation.kinds or "f" * len(operation.shapes)
    return [
        _array(shape, kind, rows, seed + i)
        for i, (shape, kind) in enumerate(zip(operation.shapes, kinds, strict=True))
    ]


@pytest.mark.parametrize("name", OPERATIONS)
@settings(max_examples=3)
@given(data=st.data())
def test_a_rule_gives_what_the_whole_operation_gives(name: str, data: Any) -> None:
    operation = OPERATIONS[name]
    size = data.draw(st.integers(2, 3), "workers")
    inputs = _inputs(
        operation, data.draw(st.integers(size, 9), "rows"), data.draw(st.integers(0, 99))
    )
    may_be = [[None, *(d for d, n in enumerate(s) if n == "n")] for s in operation.shapes]
    spread = [data.draw(st.sampled_from(places), "rows of an input") for places in may_be]
    # One input at least has the rows, and tells how many there are.
    if all(d is None for d in spread):
        first = next(i for i, places in enumerate(may_be) if len(places) > 1)
        spread[first] = may_be[first][1]
    is_static = data.draw(st.booleans(), "static")
    wanted = programs.compute_whole(operation.call, inputs)
    computed = programs.compute(operation.call, inputs, spread, size, is_static)
    for outputs in computed.outputs:
        for found, whole in zip(outputs, wanted, strict=True):
            assert found.shape == whole.shape
            assert found.dtype == whole.dtype
            if found.dtype == object:
                assert found.tolist() == whole.tolist()
            else:
                # Sums of large terms that cancel are rounded by the size of the terms.
                is_real = whole.dtype.kind == "f" and whole.size
                largest = float(np.nanmax(np.abs(whole), initial=1.0)) if is_real else 1.0
                bound = 2e-6 * (max(1.0, largest) if np.isfinite(largest) else 1.0)
                np.testing.assert_allclose(found, whole, rtol=2e-6, atol=bound)


@pytest.mark.parametrize("name", [name for name, one in OPERATIONS.items() if one.stays])
def test_rows_stay_rows(name: str) -> None:
    operation = OPERATIONS[name]
    spread = [s.index("n") if "n" in s else None for s in operation.shapes]
    computed = programs.compute(operation.call, _inputs(operation, 7, 0), spread, 2)
    assert not computed.report.whole
    if name not in ("shape", "size"):
        assert not isinstance(computed.placements[0], Replicated)
