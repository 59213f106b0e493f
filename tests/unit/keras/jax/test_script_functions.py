"""What a script's own function computes, and when it is split."""

from __future__ import annotations

import types
from typing import Any

import pytest

jax = pytest.importorskip("jax")

from syrtos.comm import world  # noqa: E402
from syrtos.keras.jax import collectives, script_functions  # noqa: E402

SMALL, LARGE = (4, 8), (512, 512)


def program(function: Any, *shapes: tuple[int, ...]) -> Any:
    given = (jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)
    return jax.make_jaxpr(function)(*given).jaxpr


def is_split(traced: Any, variables: int) -> bool:
    return script_functions._is_worth_splitting(traced, variables)


@pytest.fixture(autouse=True)
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    session = types.SimpleNamespace(world=types.SimpleNamespace(size=2))
    monkeypatch.setattr(world, "sharing", lambda: session)
    monkeypatch.setattr(collectives, "are_by_mpi", lambda session: False)
    # without the threads of a backend: other tests fork from this process
    processor = types.SimpleNamespace(platform="cpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [processor])


def test_operations_are_those_of_products_convolutions_and_their_loops() -> None:
    assert script_functions._operations(program(lambda a, b: a @ b, (3, 5), (5, 7))) == 210

    def loop(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda c, row: (c @ w, None), x, None, length=10)[0]

    assert script_functions._operations(program(loop, (5, 5), (3, 5))) == 10 * 2 * 3 * 5 * 5

    def convolve(x: Any, kernel: Any) -> Any:
        return jax.lax.conv(x, kernel, (1, 1), "SAME")

    found = script_functions._operations(program(convolve, (1, 2, 8, 8), (6, 2, 3, 3)))
    assert found == 2 * (6 * 8 * 8) * (2 * 3 * 3)


def train(w: Any, x: Any) -> Any:
    return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w)


def test_a_function_is_split_where_that_saves_more_than_its_exchange_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert is_split(program(train, LARGE, (4096, 512)), 1)
    assert not is_split(program(train, (8, 4), SMALL), 1)
    # MPI takes less time than gloo.
    between = program(train, (128, 128), (256, 128))
    assert not is_split(between, 1)
    monkeypatch.setattr(collectives, "are_by_mpi", lambda session: True)
    assert is_split(between, 1)


def test_a_function_that_returns_no_new_variables_is_not_split() -> None:
    def evaluate(w: Any, states: Any, x: Any) -> Any:
        return w, states + (x @ w).sum()

    assert not is_split(program(evaluate, LARGE, (200,), (4096, 512)), 2)


def test_a_function_that_goes_through_batches_one_by_one_is_not_split() -> None:
    def epoch(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda w, batch: (train(w, batch), None), w, x)[0]

    assert not is_split(program(epoch, LARGE, (8, 4096, 512)), 1)
