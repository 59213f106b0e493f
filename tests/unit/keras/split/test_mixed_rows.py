"""Which losses and metrics need the rows of all workers."""

from __future__ import annotations

import functools
import types
from typing import Any

import keras
import pytest

from syrtos.keras import keras_origin
from syrtos.keras.split import known_parts, mixed_rows


def own(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(y_true - y_pred)


class Own(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return y_true - y_pred


@pytest.mark.parametrize(
    "name",
    [
        "MeanSquaredError",
        "BinaryCrossentropy",
        "SparseCategoricalCrossentropy",
        "Huber",
        "CosineSimilarity",
        "CTC",
    ],
)
def test_losses_of_keras_that_look_at_each_row(name: str) -> None:
    assert mixed_rows.loss_is_row_by_row(getattr(keras.losses, name)())


@pytest.mark.parametrize(
    "loss", [keras.losses.Dice(), keras.losses.Tversky(), keras.losses.Circle(), Own()]
)
def test_losses_that_may_mix_rows(loss: keras.losses.Loss) -> None:
    assert not mixed_rows.loss_is_row_by_row(loss)


def test_functions() -> None:
    wrapper: Any = type(keras.losses.MeanSquaredError()).__mro__[1]
    assert not mixed_rows.loss_is_row_by_row(wrapper(own))
    assert not mixed_rows.is_row_by_row(own)
    assert not mixed_rows.is_row_by_row(keras.losses.dice)
    assert not mixed_rows.is_row_by_row(keras.losses.Dice())
    assert mixed_rows.is_row_by_row(keras.losses.mean_squared_error)
    assert mixed_rows.is_row_by_row(functools.partial(keras.losses.huber, delta=2.0))


def test_what_only_looks_like_a_function_of_keras() -> None:
    @functools.wraps(keras.losses.mean_squared_error)
    def wrapping(y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean(y_true - y_pred)

    assert not mixed_rows.is_row_by_row(wrapping)
    assert not mixed_rows.is_row_by_row(keras.losses.Dice().call)
    assert mixed_rows.is_row_by_row(keras.losses.Huber().call)
    along_rows = functools.partial(keras.losses.cosine_similarity, axis=0)
    assert not mixed_rows.is_row_by_row(along_rows)
    # Syrtos wraps functions of Keras, and these are still Keras's.
    assert keras_origin.is_of_keras(keras.losses.Loss.__call__)
    assert keras_origin.is_of_keras(keras.Model.fit)


def test_methods_that_the_script_has_given_objects_of_keras() -> None:
    loss: Any = keras.losses.MeanSquaredError()
    loss.call = own
    assert not mixed_rows.loss_is_row_by_row(loss)
    optimizer: Any = keras.optimizers.SGD()
    assert known_parts.is_known_optimizer(optimizer)
    optimizer.apply = types.MethodType(lambda self, *_: None, optimizer)
    assert not known_parts.is_known_optimizer(optimizer)
