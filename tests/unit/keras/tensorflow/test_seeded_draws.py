"""Draws of a step by a constant seed, which all workers would make alike for their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from syrtos.keras.tensorflow.seeded_draws import first_seeded_draw

Step = Callable[[Any], Any]
DROPOUT, GENERATOR = keras.layers.Dropout(0.5, seed=5), keras.random.SeedGenerator(5)


def found_in(step: Step, rows: int | None, by_any_seed: bool = False) -> str:
    """Returns what is found in a step that takes some rows of three numbers."""
    found = []

    @tf.function(autograph=False)
    def traced(x: Any) -> Any:
        result = step(x)
        found.append(first_seeded_draw(tf.compat.v1.get_default_graph(), [x], by_any_seed))
        return result

    function: Any = traced
    function.get_concrete_function(tf.TensorSpec([rows, 3]))
    return found[0]


@pytest.mark.parametrize("rows", [None, 8])
@pytest.mark.parametrize(
    "step",
    [
        lambda x: x * tf.random.stateless_uniform(tf.shape(x), (1, 2)),
        lambda x: x * keras.random.normal(keras.ops.shape(x), seed=5),
        lambda x: x * tf.random.stateless_truncated_normal(tf.stack([tf.shape(x)[0], 3]), (1, 2)),
        lambda x: tf.random.stateless_categorical(x, 2, tf.cast([1, 2], tf.int64)),
        lambda x: tf.function(lambda y: y * tf.random.stateless_normal(tf.shape(y), (1, 2)))(x),
    ],
)
def test_a_draw_for_rows_by_a_constant_seed_is_found(step: Step, rows: int | None) -> None:
    assert found_in(step, rows).startswith("Stateless")


@pytest.mark.parametrize("rows", [None, 8])
@pytest.mark.parametrize(
    "step",
    [
        lambda x: DROPOUT(x, training=True),
        lambda x: x * keras.random.uniform(keras.ops.shape(x), seed=GENERATOR),
        lambda x: x * tf.random.stateless_uniform(tf.shape(x), tf.cast(x[0, :2], tf.int32)),
        lambda x: x * tf.random.stateless_uniform([3], (1, 2)),  # equal for all rows
        lambda x: x * tf.random.stateless_uniform([], (1, 2)),
        lambda x: x * tf.random.uniform(tf.shape(x), seed=3),
        lambda x: x + 1.0,
    ],
)
def test_other_draws_are_none(step: Step, rows: int | None) -> None:
    assert found_in(step, rows) == ""


@pytest.mark.parametrize(
    "step",
    [
        lambda x: DROPOUT(x, training=True),
        lambda x: x * keras.random.uniform(keras.ops.shape(x), seed=GENERATOR),
        lambda x: x * tf.random.uniform(tf.shape(x)),
        lambda x: tf.random.shuffle(x),
    ],
)
def test_in_predictions_draws_by_any_seed_are_found(step: Step) -> None:
    assert found_in(step, 8, by_any_seed=True)


def test_in_predictions_what_is_drawn_for_all_rows_is_none() -> None:
    assert found_in(lambda x: x * tf.random.uniform([3]), 8, by_any_seed=True) == ""
    assert found_in(lambda x: DROPOUT(x, training=False), 8, by_any_seed=True) == ""
    counter = tf.Variable(tf.zeros(()))

    @tf.function
    def counting(x: Any) -> Any:
        return x + counter.assign_add(1.0)

    # A call of a function with a state is no draw.
    assert found_in(counting, 8, by_any_seed=True) == ""
