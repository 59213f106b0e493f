"""Programs of several operations: loops, branches, order of effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import programs
import pytest
import tensorflow as tf
from tensorflow.python.ops import while_v2

from syrtos.comm.arrays import Array
from syrtos.keras.tensorflow import tf_internals_emission
from syrtos.keras.tensorflow.partition.values import Partial

pytestmark = [
    pytest.mark.needs("tensorflow"),
    pytest.mark.skipif(not programs.HAS_THREADS, reason="TensorFlow has begun to compute"),
]


def numbers(*shape: int) -> Array:
    """Halves, of which sums are exact."""
    return (np.random.default_rng(0).integers(-6, 7, shape) / 2).astype("float32")


def check(function: Callable[..., Any], *inputs: Array) -> None:
    wanted = programs.compute_whole(function, inputs)
    for size in (2, 3):
        for is_static in (False, True):
            computed = programs.compute(function, inputs, [0] * len(inputs), size, is_static)
            for outputs in computed.outputs:
                for found, whole in zip(outputs, wanted, strict=True):
                    np.testing.assert_allclose(found, whole, rtol=1e-6)


@pytest.mark.parametrize("reduce", [tf.reduce_max, tf.reduce_min, tf.reduce_sum, tf.reduce_prod])
def test_a_reduction_of_rows_is_the_variable_of_a_loop(reduce: Callable[..., tf.Tensor]) -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, last: tf.Tensor, total: tf.Tensor) -> Any:
            return i + 1, reduce(x[:, i]), total + last

        found = tf.while_loop(
            lambda i, last, total: i < 3, body, (0, tf.constant(-7.0), tf.constant(0.0))
        )
        return found[1:]

    check(function, numbers(7, 3))


def test_a_loop_ends_by_a_reduction_of_rows() -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, goes_on: tf.Tensor) -> Any:
            return i + 1, tf.reduce_all(x[:, i] > -9.0)

        return tf.while_loop(lambda i, goes_on: goes_on & (i < 3), body, (0, tf.constant(True)))[0]

    check(function, numbers(7, 3))


def test_rows_are_gathered_in_each_iteration() -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, total: tf.Tensor) -> Any:
            return i + 1, total + tf.reduce_sum(tf.sort(x[:, i])[:2])

        return tf.while_loop(lambda i, total: i < 9, body, (0, tf.constant(0.0)))[1]

    check(function, numbers(7, 9))


@pytest.mark.parametrize("is_called", [False, True])
@pytest.mark.parametrize("of_rows", [False, True])
@pytest.mark.parametrize("draws", [False, True])
def test_iterations_that_draw_take_turns(
    monkeypatch: pytest.MonkeyPatch, draws: bool, of_rows: bool, is_called: bool
) -> None:
    """Threads would give them the numbers in an order of each worker's own."""
    monkeypatch.setattr(while_v2, "_build_while_op", while_v2._build_while_op)
    tf_internals_emission.make_iterations_take_turns()

    def body(i: tf.Tensor, total: tf.Tensor) -> Any:
        return i + 1, total * (tf.random.uniform([], seed=3) if draws else 0.5)

    def loop(start: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, total: i < 4, body, (0, start))[1]

    def function(x: tf.Tensor) -> tf.Tensor:
        start = x if of_rows else tf.ones([3])
        return (tf.function(loop) if is_called else loop)(start) + tf.reduce_sum(x)

    computed = programs.compute(function, [numbers(7, 3)], [0], 2)
    assert computed.parallel_iterations == {1 if draws else 10}


def test_a_branch_by_a_reduction_of_rows() -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        return tf.cond(
            tf.reduce_sum(x) > 0, lambda: tf.reduce_mean(x, 0), lambda: tf.reduce_max(x, 0)
        )

    check(function, numbers(7, 3))
    check(function, -numbers(7, 3))


@pytest.mark.parametrize("other", [lambda x: tf.ones((1, 1)), lambda x: tf.sort(x[:, :1], 0)[-2:]])
def test_a_branch_with_other_rows(other: Callable[..., tf.Tensor]) -> None:
    def function(x: tf.Tensor) -> Any:
        chosen = tf.cond(tf.reduce_sum(x) > 99, lambda: tf.abs(x[:, :1]), lambda: other(x))
        return tf.reduce_sum(chosen), tf.reduce_mean(chosen)

    check(function, numbers(7, 3))


def test_singular_values_without_vectors() -> None:
    check(lambda x: tf.linalg.svd(x, compute_uv=False), numbers(6, 3, 2))


def test_a_concatenation_of_rows_in_an_array() -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        array = tf.TensorArray(tf.float32, 2, infer_shape=False)
        return tf.reduce_sum(array.write(0, x).write(1, 2 * x).concat(), 0)

    check(function, numbers(7, 3))


def test_what_waits_for_a_group_of_assignments_sees_them() -> None:
    variable = tf.Variable(tf.constant(1.0))

    def function(x: tf.Tensor) -> tf.Tensor:
        assigned = variable.assign_add(tf.reduce_sum(x), read_value=False)
        with tf.control_dependencies([tf.group(assigned)]):
            seen = tf.numpy_function(lambda value: value, [variable.read_value()], tf.float32)
        return tf.ensure_shape(seen, [])

    check(function, numbers(7, 3))


def test_names_that_begin_with_an_underscore() -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        clipped, _ = tf.clip_by_global_norm([tf.reduce_sum(x, 0)], 1.0)
        return clipped[0]

    check(function, numbers(7, 3))


def test_what_nothing_needs_is_left_out() -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        tf.linalg.expm(tf.matmul(x, x, transpose_b=True))
        return tf.reduce_sum(x)

    computed = programs.compute(function, [numbers(7, 3)], [0], 2)
    assert computed.report.gathers == 0


def test_a_mean_that_is_broadcast_along_other_dimensions_has_no_variance() -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        mean = tf.reduce_mean(x, [0, 2])
        return tf.reduce_mean(tf.math.squared_difference(x, tf.stop_gradient(mean)), [0, 2])

    check(function, numbers(8, 5, 5))


@pytest.mark.parametrize("keeps", [False, True])
def test_mean_and_variance_travel_together(keeps: bool) -> None:
    """Also of numbers far from zero, and with NaN in one channel."""

    def function(x: tf.Tensor) -> Any:
        mean, variance = tf.nn.moments(x, [0, 1], keepdims=keeps)
        return mean, variance, (x - mean) * tf.math.rsqrt(variance + 1e-3)

    x = numbers(7, 5, 3).astype("float64") * 1e-2 + np.array([0.0, 1e6, 0.0])
    x[2, 1, 2] = np.nan
    wanted = programs.compute_whole(function, [x])
    computed = programs.compute(function, [x], [0], 3, False)
    assert computed.report.reductions == 1
    assert computed.report.gathers == 1, "of the last output alone"
    for outputs in computed.outputs:
        for found, whole in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("is_static", [False, True])
def test_gradients_of_a_loop_are_summed_over_workers_once_after_it(is_static: bool) -> None:
    def function(x: tf.Tensor) -> Any:
        weights = tf.constant([[0.5, -0.5, 1.0]] * 3)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            _, last = tf.while_loop(
                lambda i, state: i < 3,
                lambda i, state: (i + 1, tf.tanh(state @ weights + x)),
                (0, tf.zeros_like(x)),
            )
            loss = tf.reduce_sum(last)
        return tape.gradient(loss, weights)

    x = numbers(7, 3)
    (wanted,) = programs.compute_whole(function, [x])
    computed = programs.compute(function, [x], [0], 2, is_static)
    assert [str(place) for place in computed.placements] == [str(Partial())]
    for (found,) in computed.outputs:
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
