"""Memory is used again as soon as nothing depends on it any more, never before, and what is not needed is freed."""

from __future__ import annotations

import concurrent.futures
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from syrtos.comm import pool
from syrtos.comm.pool import Pool

MB = 1 << 20


def of(nbytes: int, dtype: str = "uint8") -> np.ndarray[Any, Any]:
    """What an array is asked for by: its memory is never touched."""
    return np.empty(nbytes // np.dtype(dtype).itemsize, dtype)


def address(array: np.ndarray[Any, Any]) -> int:
    return array.ctypes.data


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "float64", "complex128"])
@pytest.mark.parametrize("nbytes", [0, 64, 1 << 16, (1 << 16) + 16, 3 * MB + 48])
def test_an_array_is_as_asked_for(nbytes: int, dtype: str) -> None:
    made = Pool().empty_like(of(nbytes, dtype))
    assert (made.dtype, made.nbytes, made.flags.c_contiguous, made.flags.writeable) == (
        dtype,
        nbytes,
        True,
        True,
    )
    assert nbytes < 1 << 16 or address(made) % 64 == 0


def test_memory_is_used_again_once_the_array_is_gone() -> None:
    one = Pool()
    first = one.empty_like(of(MB))
    where = address(first)
    assert address(one.empty_like(of(MB))) != where
    del first
    assert address(one.empty_like(of(MB, "float32"))) == where


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[5:9],
        lambda a: a.reshape(2, -1)[1].view(np.float32),
        lambda a: memoryview(a)[3:],
        lambda a: np.from_dlpack(a[1:]),
        lambda a: np.frombuffer(a, np.uint8)[7:],
        lambda a: np.lib.stride_tricks.as_strided(a, (3,)),
    ],
    ids=["slice", "reshape", "memoryview", "dlpack", "frombuffer", "strides"],
)
def test_any_view_keeps_the_memory(view: Callable[[Any], Any]) -> None:
    one = Pool()
    array = one.empty_like(of(MB))
    where, kept = address(array), view(array)
    del array
    gc.collect()
    assert address(one.empty_like(of(MB))) != where
    del kept
    assert address(one.empty_like(of(MB))) == where


def test_single_uses_leave_little() -> None:
    one = Pool()
    for nbytes in np.linspace(1 << 16, 16 * MB, 500).astype(int).tolist():
        one.empty_like(of(nbytes))
    one.empty_like(of(MB))
    assert one.nbytes <= 36 * MB


def test_what_a_step_needs_stays() -> None:
    one = Pool()
    sizes = np.random.default_rng(0).integers(1 << 16, 4 * MB, 100).tolist()

    def step() -> set[int]:
        return {address(array) for array in [one.empty_like(of(nbytes)) for nbytes in sizes]}

    first = step()
    assert [step() for _ in range(3)] == [first] * 3


def test_sizes_in_turn_stay_too(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Pool()
    sizes = np.random.default_rng(1).integers(1 << 16, 16 * MB, 100).tolist()

    def step() -> int:
        for nbytes in sizes:
            one.empty_like(of(nbytes))
        return made[0]

    made = counted(monkeypatch)
    step()
    before = step()
    assert step() == before


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often memory is made from now on."""
    made, new = [0], pool._aligned_memory

    def count(nbytes: int) -> Any:
        made[0] += 1
        return new(nbytes)

    monkeypatch.setattr(pool, "_aligned_memory", count)
    return made


def test_a_large_use_of_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(pool.time, "monotonic", lambda: now[0])
    one = Pool()
    one.empty_like(of(64 * MB))
    for now[0] in (20.0, 40.0):  # the period of the large use, and the one after
        one.empty_like(of(MB))
        assert one.nbytes >= 64 * MB
    for now[0] in (80.0, 120.0):
        one.empty_like(of(MB))
    assert one.nbytes <= 2 * MB


def test_threads_never_share_memory() -> None:
    one = Pool()

    def play(number: int) -> bool:
        right = True
        for round_ in range(300):
            array = one.empty_like(of(1 << 17))
            array[::4096] = number
            view = array[: 1 << 16]
            del array
            if round_ % 3:
                right = right and bool((view[::4096] == number).all())
        return right

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert all(threads.map(play, range(8)))
    assert one.nbytes <= 2 * 8 * (1 << 18)


def test_arrays_of_a_collected_cycle_come_back() -> None:
    one = Pool()
    cycle: list[Any] = [one.empty_like(of(MB))]
    where = address(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert address(one.empty_like(of(MB))) == where
