"""Replicas are made equal, and proven equal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.errors import DivergenceError, OutOfStepError
from syrtos.keras.replica import state


def variable(value: Any, name: str | None = None) -> tf.Variable:
    return tf.Variable(value, name=name)


def variables(rank: int = 0, size: int = 4) -> list[tf.Variable]:
    """A kernel that is the same on every rank, and a bias that is its rank."""
    return [
        variable(np.arange(size, dtype=np.float32), name="kernel"),
        variable(np.full(3, rank, np.float32), name="bias"),
    ]


@pytest.mark.parametrize("root", [0, 2])
def test_broadcasting_gives_everyone_the_roots_values(together: Any, root: int) -> None:
    def play(comm: InProcessCommunicator) -> list[float]:
        mine = [
            variable(float(comm.rank)),
            variable([comm.rank > 1]),
            variable(np.int64(comm.rank)),
        ]
        state.broadcast(comm, mine, root)
        return [float(v.numpy().item()) for v in mine]

    assert together(3, play) == [[root, root > 1, root]] * 3


def test_a_shared_variable_is_broadcast_once(together: Any) -> None:
    def play(comm: InProcessCommunicator) -> float:
        shared = variable(float(comm.rank))
        state.broadcast(comm, [shared] * (1 + comm.rank))
        return float(shared.numpy())

    assert together(2, play) == [0.0, 0.0]


def test_equal_models_are_accepted(together: Any) -> None:
    def play(comm: InProcessCommunicator) -> None:
        state.check_structure(comm, variables(comm.rank))
        state.check_equal(comm, variables(), step=1)

    assert together(3, play) == [None] * 3


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            lambda: variables(size=5),
            r"rank 0: kernel:0 \(4,\) float32\n  rank 1: kernel:0 \(5,\) float32",
        ),
        (
            lambda: [variables()[0], variable(np.zeros(3, np.float64), name="bias")],
            r"rank 1: bias:0 \(3,\) float64",
        ),
        (lambda: variables()[::-1], "rank 1: bias:0"),
        (lambda: variables()[:1], "rank 0: 2 variables\n  rank 1: 1 variables"),
    ],
    ids=["shape", "dtype", "order", "count"],
)
def test_different_models_are_out_of_step(together: Any, other: Any, message: str) -> None:
    with pytest.raises(OutOfStepError, match=message):
        together(2, lambda comm: state.check_structure(comm, other() if comm.rank else variables()))


def test_diverged_replicas_are_named_by_variable_and_rank(together: Any) -> None:
    with pytest.raises(
        DivergenceError, match=r"by step 7: `bias:0` is the first.*ranks \[0, 1\] / \[2\]"
    ):
        together(3, lambda comm: state.check_equal(comm, variables(int(comm.rank == 2)), step=7))


@given(st.lists(st.integers(0, 255), min_size=1, max_size=40), st.data())
def test_a_checksum_sees_every_bit(values: list[int], data: st.DataObject) -> None:
    position, bit = data.draw(st.integers(0, len(values) - 1)), data.draw(st.integers(0, 7))
    changed = values.copy()
    changed[position] ^= 1 << bit
    assert checksum(np.array(values, np.uint8)) != checksum(np.array(changed, np.uint8))
    assert checksum(np.array(values, np.uint8)) == checksum(np.array(values, np.uint8))


@pytest.mark.parametrize("bits", [0xFFC00000, 0x7FFFFFFF, 0x7FC00001])
def test_all_forms_of_nan_have_one_checksum(bits: int) -> None:
    def with_nan(form: int) -> Any:
        value = np.arange(5, dtype=np.float32)
        value[3] = np.array(form, np.uint32).view(np.float32)
        return value

    assert checksum(with_nan(bits)) == checksum(with_nan(0x7FC00000))
    assert checksum(with_nan(bits)) != checksum(np.arange(5, dtype=np.float32))


def checksum(value: Any) -> int:
    return state.checksum(variable(value))


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int64", "bool"]
)
def test_every_dtype_has_a_checksum(dtype: str) -> None:
    one, other = (tf.cast(tf.constant([1, last, 0]), dtype) for last in (0, 1))
    assert checksum(one) == checksum(tf.identity(one))
    assert checksum(one) != checksum(other)


@pytest.mark.parametrize(
    "value", [np.zeros(0, np.float32), np.float32(3.0), np.zeros((0, 3), np.float32)]
)
def test_scalars_and_nothing_have_checksums(value: Any) -> None:
    assert checksum(value) == checksum(value)
    assert checksum(np.float32(3.0)) != checksum(np.float32(4.0))


@pytest.mark.parametrize("size", [8, 16, 64, 1000])
def test_a_checksum_tells_arrays_of_one_value_apart(size: int) -> None:
    assert checksum(np.zeros(size, np.float32)) != checksum(np.ones(size, np.float32))


def test_a_checksum_sees_swapped_values() -> None:
    there, back = np.arange(8.0), np.arange(8.0)
    back[[0, 2]] = there[[2, 0]]
    assert checksum(there) != checksum(back)


def test_names_that_keras_has_numbered_may_differ(together: Any) -> None:
    def play(comm: InProcessCommunicator) -> None:
        names = (
            ("dense/kernel", "dense_1/kernel")
            if comm.rank
            else ("dense_4/kernel", "dense_12/kernel")
        )
        state.check_structure(comm, [variable(np.zeros(3), name) for name in names])

    assert together(2, play) == [None] * 2


def test_names_that_the_script_has_given_may_not(together: Any) -> None:
    def play(comm: InProcessCommunicator) -> None:
        with pytest.raises(OutOfStepError):
            state.check_structure(
                comm, [variable(np.zeros(3), "left/kernel" if comm.rank else "right/kernel")]
            )

    together(2, play)


def test_a_models_variables_are_its_own_and_its_optimizers_once() -> None:
    kernel, bias = variables()
    rate = variable(0.1)
    for listed in ([rate, kernel], lambda: [rate, kernel]):
        model: Any = SimpleNamespace(
            variables=[kernel, bias, kernel], optimizer=SimpleNamespace(variables=listed)
        )
        found = state.of_model(model)
        assert [id(v) for v in found] == [id(kernel), id(bias), id(rate)]


def test_a_model_without_an_optimizer_has_its_own_variables_only() -> None:
    mine = variables()
    models: list[Any] = [
        SimpleNamespace(variables=mine, optimizer=None),
        SimpleNamespace(variables=mine),
    ]
    assert [len(state.of_model(model)) for model in models] == [2, 2]


def test_the_first_difference_is_not_one_of_numbers(together: Any) -> None:
    def play(comm: InProcessCommunicator) -> None:
        first = variable(np.zeros(3), f"dense_{4 + comm.rank}/kernel")
        state.check_structure(comm, [first, variable(np.zeros(5 + comm.rank), "dense_9/bias")])

    with pytest.raises(
        OutOfStepError,
        match=r"difference:\n  rank 0: dense_9/bias:0 \(5,\).*\n  rank 1: dense_9/bias:0 \(6,\)",
    ):
        together(2, play)


def test_optimizers_are_found_beside_tuples_that_tensorflow_has_wrapped() -> None:
    x = keras.Input((3,))
    model = keras.Model(x, [keras.layers.Dense(1)(x), keras.layers.Dense(1)(x)])
    model.compile("sgd", loss=("mse", ["mse", "mae"]))
    assert type(model.loss) is not tuple
    assert state.optimizers_of(model) == [model.optimizer]
