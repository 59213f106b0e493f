from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from syrtos.keras.tensorflow.decisions import first_decision


def decision(step: Callable[[Any], Any], rows: int | None = None, by_count: bool = False) -> str:
    """Returns what is found in a step that takes some rows of three numbers."""
    found = []

    @tf.function(autograph=False)
    def traced(x: Any) -> Any:
        step(x)
        found.append(first_decision(tf.compat.v1.get_default_graph(), [x], by_count))
        return x

    function: Any = traced
    function.get_concrete_function(tf.TensorSpec([rows, 3]))
    return found[0]


@pytest.mark.parametrize("rows", [None, 8])
def test_a_mean_that_is_compared_is_found_with_its_line(rows: int | None) -> None:
    found = decision(lambda x: tf.maximum(tf.reduce_mean(x), 1.0), rows)
    assert found.startswith("Maximum in test_decisions.py, line ")


@pytest.mark.parametrize(
    "step",
    [
        lambda x: tf.where(tf.reduce_sum(x) > 2.0, x, 0.0),
        lambda x: tf.cond(tf.cast(tf.reduce_sum(x), tf.bool), lambda: x, lambda: 2 * x),
        lambda x: tf.where(x > tf.reduce_mean(x), x, 0.0),  # rows against a number
        lambda x: tf.nn.relu(tf.reduce_mean(x, axis=0)),  # numbers of columns
        lambda x: keras.ops.maximum(keras.ops.mean(x), 1.0),
        lambda x: tf.function(lambda y: tf.abs(tf.reduce_mean(y)))(x),
        lambda x: tf.abs(tf.function(tf.reduce_mean)(x)),
        lambda x: tf.cond(tf.size(x) > 6, lambda: tf.maximum(tf.reduce_mean(x), 1.0), lambda: 0.0),
        lambda x: tf.while_loop(
            lambda i, y: tf.reduce_mean(y) > i, lambda i, y: (i + 1.0, y), [0.0, x]
        )[0],
        lambda x: tf_keras.backend.maximum(tf_keras.backend.mean(x), 1.0),
        lambda x: (
            tf.reduce_sum(x) / tf.reduce_sum(tf.cast(x > 0.5, tf.float32))
        ),  # a mean over chosen rows
        lambda x: tf.math.divide_no_nan(tf.reduce_sum(x), tf.reduce_sum(x[:, 0])),
        lambda x: tf.reduce_mean(tf.square(tf.boolean_mask(x, x[:, 0] > 0.5))),
    ],
)
def test_a_number_that_decides_is_found(step: Callable[[Any], Any]) -> None:
    assert "test_decisions.py" in decision(step)


def _exchanged(x: Any) -> Any:
    total = tf.numpy_function(np.sum, [x], tf.float32)
    return tf.maximum(tf.ensure_shape(total, []), 1.0)


LARGEST = tf.Variable(tf.zeros(()), trainable=False)
METRIC: Any = keras.metrics.MeanSquaredError()


def _keras_alone(x: Any) -> Any:
    METRIC.update_state(x, 2 * x)
    loss: Any = keras.losses.CategoricalCrossentropy()(x, x)
    return loss + METRIC.result()


@pytest.mark.parametrize(
    "step",
    [
        lambda x: tf.reduce_mean(tf.maximum(x, 1.0)),  # of rows
        lambda x: (
            tf.reduce_mean(x) * 2.0 + tf.sqrt(tf.reduce_sum(x * x))
        ),  # a comparison shows these
        lambda x: tf.reduce_mean(x) / tf.cast(tf.maximum(tf.shape(x)[0], 1), tf.float32),
        lambda x: tf.reduce_mean(x / tf.reduce_sum(x, axis=1, keepdims=True)),  # of a row
        lambda x: tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0.5)),
        lambda x: tf.gradients(keras.ops.mean(keras.losses.cosine_similarity(x, 2 * x)), x),
        lambda x: tf.maximum(tf.constant(2.0), 1.0) * x,
        lambda x: LARGEST.assign(
            tf.maximum(LARGEST, tf.reduce_max(x))
        ),  # a rule that a comparison finds
        _exchanged,
        _keras_alone,
        lambda x: tf.debugging.assert_less(tf.reduce_mean(x), 9.0),
    ],
)
def test_what_decides_nothing_by_a_part_is_not(step: Callable[[Any], Any]) -> None:
    assert decision(step) == ""


@pytest.mark.parametrize(
    "step",
    [
        lambda x: tf.cond(tf.shape(x)[0] > 256, lambda: x, lambda: 2 * x),
        lambda x: tf.math.top_k(x[:, 0], tf.minimum(tf.shape(x)[0], 256)).values,
        lambda x: tf.reshape(x[: tf.size(x) // 3], [-1]),
    ],
)
def test_a_number_of_rows_that_decides_is_found_where_it_is_to_be(
    step: Callable[[Any], Any],
) -> None:
    assert decision(step) == ""
    assert decision(step, by_count=True).startswith("the number of rows: ")


@pytest.mark.parametrize(
    "step",
    [
        lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], tf.float32),
        lambda x: tf.eye(tf.shape(x)[0]) * tf.matmul(x, x, transpose_b=True),
        lambda x: tf.debugging.assert_equal(tf.shape(x)[0], tf.shape(x * 2.0)[0]),
    ],
)
def test_a_number_of_rows_that_decides_nothing(step: Callable[[Any], Any]) -> None:
    assert decision(step, by_count=True) == ""
