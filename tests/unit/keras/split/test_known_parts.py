"""Which parts of a model are known to be right on a share of the rows."""

from __future__ import annotations

import types
from types import SimpleNamespace
from typing import Any

import keras
import pytest

from syrtos.keras.split import known_parts
from syrtos.keras.split.known_parts import unknown_parts


def functional(centred: bool) -> keras.Model:
    """Returns a model of operations beside its layers."""
    given = keras.Input((4,))
    rows = keras.layers.Dense(3)(given)
    if centred:
        rows = rows - keras.ops.mean(rows, axis=0, keepdims=True)
    return keras.Model(given, rows * 2.0)


def parts_of(*layers: Any, model: Any = None) -> list[str]:
    built: Any = model or keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    built.compile("sgd", "mse")
    return unknown_parts(built, True, "train_step")


def test_parts_of_keras_are_known() -> None:
    assert parts_of(keras.layers.Dense(4, "relu"), functional(centred=False)) == []


def test_operations_of_a_model_inside_of_another_are_looked_at() -> None:
    found = parts_of(functional(centred=True))
    assert len(found) == 1
    assert found[0].startswith("the operation `mean")
    timed = keras.layers.TimeDistributed(functional(centred=True))
    model = keras.Sequential([keras.Input((5, 4)), timed])
    assert parts_of(model=model)[0].startswith("the operation `mean")


def test_an_operation_of_the_script_under_a_name_of_keras_is_not_known() -> None:
    class Clip(keras.Operation):
        def call(self, x: Any) -> Any:
            return x - keras.ops.mean(x, axis=0)

        def compute_output_spec(self, x: Any) -> Any:
            return keras.KerasTensor(x.shape, x.dtype)

    given = keras.Input((4,))
    assert parts_of(model=keras.Model(given, Clip()(given))) == ["the operation `clip`"]


def test_methods_that_the_script_gives_a_model_or_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = functional(centred=False)
    model.compute_loss = types.MethodType(lambda self, *_: 0.0, model)
    assert parts_of(model=model) == ["Functional.compute_loss"]

    class Calling(keras.Sequential):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    calling = Calling([keras.Input((4,)), keras.layers.Dense(1)])
    assert parts_of(model=calling) == ["Calling.__call__"]
    monkeypatch.setattr(keras.layers.Dense, "call", lambda self, x: x)
    dense = keras.layers.Dense(1, name="dense")
    assert parts_of(model=keras.Sequential([keras.Input((1,)), dense])) == ["the layer `dense`"]


def test_a_metric_with_a_method_from_the_script() -> None:
    metric: Any = keras.metrics.MeanAbsoluteError()
    metric.update_state = lambda *_: None
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[metric])
    found = unknown_parts(model, True, "train_step")
    assert found == ["the metric MeanAbsoluteError with an `update_state` of its own"]


def test_a_layer_with_an_attribute_of_its_own_named_operations() -> None:
    class Own(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__(name="own")
            self.operations = [abs, 3]

        def call(self, x: Any) -> Any:
            return x

    assert parts_of(Own()) == ["the layer `own`"]


def test_stateful_layers() -> None:
    layer = SimpleNamespace(name="lstm", stateful=True, reset_state=lambda: None)
    model = SimpleNamespace(_flatten_layers=lambda: [layer], inputs=[])
    assert "`lstm` is stateful" in known_parts.fixed_batch(model)  # type: ignore[arg-type]
    assert known_parts.fixed_batch(SimpleNamespace(_flatten_layers=list)) == ""  # type: ignore[arg-type]


def test_rows_of_an_input_that_came_from_the_first_batch_mean_nothing() -> None:
    """A `Sequential` without an `Input` is built from a share, with its number of rows; one that the script has built has rows of its own."""
    of_data, of_script = (keras.Sequential([keras.layers.Dense(1)]) for _ in range(2))
    with known_parts.noting_build(of_data):
        of_data.build((16, 4))
    of_script.build((16, 4))
    with known_parts.noting_build(of_script):
        pass
    assert known_parts.unknown_parts(of_data, True, "train_step") == []
    assert known_parts.unknown_parts(of_script, True, "train_step") == ["the input of 16 rows"]


@pytest.mark.needs("tensorflow")  # for a layer of texts
def test_parts_of_keras_that_mix_rows_are_not_known() -> None:
    texts = keras.layers.TextVectorization(output_mode="int")
    assert not known_parts.is_known_layer(texts)
    assert known_parts.is_known_layer(
        keras.layers.TextVectorization(output_mode="int", output_sequence_length=4)
    )
    assert not known_parts.is_known_layer(keras.layers.MelSpectrogram())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="none"))
    assert known_parts.unknown_parts(model, True, "train_step") == [
        "the loss MeanSquaredError without a reduction"
    ]
    assert known_parts.unknown_parts(model, True, "predict_step") == []


def test_a_result_that_has_rows_alone_is_not_known() -> None:
    """Keras's losses and layers compute along the last axis, which is that of the rows then."""
    for layers in ([keras.layers.Reshape(())], [keras.layers.Reshape(()), keras.layers.Softmax()]):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1), *layers])
        assert any("of the shape (None,)" in part for part in parts_of(model=model))
