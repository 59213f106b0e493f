"""Keras's own parts of a model and its step, which are known to be right on a share of the rows."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeGuard

from syrtos.keras import keras_internals, keras_origin
from syrtos.keras.split import mixed_rows
from syrtos.records import read_record, record_of

if TYPE_CHECKING:
    from syrtos.keras.keras_internals import KerasTensor
    from syrtos.keras.protocols import Model


_FLOATING = re.compile("b?float|complex")


def fixed_batch(model: Model) -> str:
    """Returns why batches can't be split (a stateful layer keeps a state per row); empty if they can."""
    for layer in keras_internals.layers_of(model):
        if getattr(layer, "stateful", False) and hasattr(layer, "reset_state") | hasattr(
            layer, "reset_states"
        ):
            return (
                f"the layer `{layer.name}` is stateful: it keeps a state for each row of the batch"
            )
    return ""


def unknown_parts(model: Model, stock: bool, name: str) -> list[str]:
    """Returns the parts of a step that may be wrong on a share of the rows, as phrases.

    Args:
        model: whose step it is.
        stock: whether the step itself is Keras's own.
        name: ``train_step``, ``test_step`` or ``predict_step``.
    """
    parts = [] if stock else [f"{type(model).__name__}.{name}"]
    own = [
        method
        for method in (*_METHODS, "__call__")
        if not keras_origin.is_of_keras(owner_of(type(model), method))
    ]
    own += keras_origin.own_methods(model, _METHODS)
    parts += [f"{type(model).__name__}.{method}" for method in own]
    # A model of a fixed number of rows may use that number, e.g. to reshape.
    is_from_data = read_record(model, _BuildRecord).is_from_data
    inputs = getattr(model, "inputs", None) or ()
    rows = {shape[0] for t in inputs if (shape := getattr(t, "shape", (None,)))}
    if not is_from_data:
        parts += [f"the input of {count} rows" for count in rows if count is not None]
    layers = [layer for layer in keras_internals.layers_of(model) if layer is not model]
    parts += [f"the layer `{x.name}`" for x in layers if not is_known_layer(x)]
    # Operations of functional models of Keras 3, such as `keras.ops.sum`. Layers are among them, and
    # left out below.
    operations = {
        id(operation): operation for part in [model, *layers] for operation in _operations_of(part)
    }
    known = {id(model), *map(id, layers)}
    unknown = [
        operation.name
        for key, operation in operations.items()
        if key not in known and not _is_known_operation(operation)
    ]
    parts += [f"the operation `{operation}`" for operation in unknown]
    parts += [
        f"the output of `{maker}`, of the shape {tensor.shape}"
        for part in [model, *layers]
        for maker, tensor in keras_internals.outputs_in_graph(part)
        if maker not in unknown and not _has_rows_beside_others(tensor, rows)
    ]
    losses = keras_internals.compiled_parts(model) if name != "predict_step" else []
    parts += [
        f"the loss {type(x).__name__} without a reduction" for x in losses if _has_no_reduction(x)
    ]
    parts += [
        f"the metric {type(x).__name__} with an `update_state` of its own"
        for x in losses
        if keras_origin.own_methods(x, ["update_state"])
    ]
    given = keras_internals.given_to_compile(model) if name != "predict_step" else []
    parts += [f"the loss or metric `{_name_of(x)}`" for x in given if not mixed_rows.is_known(x)]
    optimizer = getattr(model, "optimizer", None)
    if name == "train_step" and optimizer is not None and not is_known_optimizer(optimizer):
        parts.append(f"the optimizer {type(optimizer).__name__}")
    return parts


def _has_rows_beside_others(tensor: KerasTensor, rows: Collection[int | None]) -> bool:
    """Returns whether the rows are the first dimension of a result, and not the last one too.

    Keras's layers, losses and metrics compute along the last one: none does along whole numbers or
    texts, which may have rows alone. ``rows``: the numbers of rows of the model's inputs.
    """
    if len(tensor.shape) < 2 and _FLOATING.match(tensor.dtype):
        return False
    return tensor.shape[:1] == (None,) or (len(tensor.shape) > 0 and tensor.shape[0] in rows)


def _name_of(part: object) -> str:
    return part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)


def script_sees_gradients(model: object, stock: bool, name: str) -> bool:
    """Returns whether code of the script sees gradients from their making to the end of the update.

    Args:
        model: whose step it is.
        stock: whether the step is Keras's own.
        name: ``train_step``, ``test_step`` or ``predict_step``.
    """
    if not stock:
        return name != "predict_step"
    if name != "train_step":
        return False
    optimizer = getattr(model, "optimizer", None)
    # A `LossScaleOptimizer` of Keras's may hold one of the script's own.
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return not (is_known_optimizer(optimizer) and is_known_optimizer(inner))


def is_known_optimizer(optimizer: object) -> bool:
    """Returns whether an optimizer is Keras's own, with none of its methods from the script."""
    return keras_origin.is_of_keras(type(optimizer)) and not keras_origin.own_methods(
        optimizer, ("apply", "apply_gradients", "update_step")
    )


def _operations_of(part: object) -> Iterable[_Operation]:
    """Returns the operations of a functional model of Keras 3; none of another part."""
    # A layer of the script may have an attribute of that name.
    is_of_keras = isinstance(getattr(type(part), "operations", None), property)
    return getattr(part, "operations", None) or () if is_of_keras else ()


class _Operation(Protocol):
    """An operation or a layer of Keras 3."""

    name: str


@dataclasses.dataclass
class _BuildRecord:
    """The record of a model's building: whether the shapes of a batch decided it.

    The inputs of such a model have the number of rows of its first batch, which means nothing.
    """

    is_from_data: bool = False


@contextlib.contextmanager
def noting_build(model: Model) -> Iterator[None]:
    """Notes whether a model is built inside of the block, from the shapes of a batch."""
    was_built = getattr(model, "built", True)
    yield
    if not was_built:
        record_of(model, _BuildRecord).is_from_data = True


# The methods of a model in which a script may compute something of its own.
_METHODS = ("call", "compute_loss", "compute_metrics")


def owner_of(kind: type, name: str) -> type:
    """Returns the class that a method comes from."""
    return next((base for base in kind.__mro__ if name in vars(base)), kind)


def is_known_layer(layer: object) -> bool:
    """Returns whether a layer is Keras's own, with nothing of the script's in it."""
    kind = type(layer)
    if not keras_origin.is_of_keras(kind) or kind.__name__ in _OTHERS:
        return False
    if not keras_origin.is_of_keras(getattr(kind, "call", kind)):
        return False  # the script has given Keras's class a method of its own
    if getattr(layer, "time_major", False):
        return False  # the first dimension of a recurrent layer of Keras 2 counts time then
    if (
        kind.__name__ == "TextVectorization"
        and getattr(layer, "_output_sequence_length", None) is None
    ):
        return False  # it pads to the longest text of the rows that it gets
    # An axis may be that of the rows, as in a softmax over them.
    if mixed_rows.may_be_rows(getattr(layer, "axis", None)):
        return False
    # Private attributes are Keras's own bookkeeping.
    return all(
        map(
            _is_known_value,
            (value for name, value in vars(layer).items() if not name.startswith("_")),
        )
    )


# Layers of Keras's around code of others, and `MelSpectrogram`, which cuts decibels at the loudest row
# (Keras 3.15.1).
_OTHERS = frozenset({"Lambda", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "MelSpectrogram"})


def _has_no_reduction(part: object) -> bool:
    """Returns whether a part is a loss that gives a number for each row."""
    # The gradient of such numbers is that of their sum, and a split step takes a mean.
    return _is_loss(part) and part.reduction in (None, "none")


class _Loss(Protocol):
    """A loss of Keras."""

    @property
    def reduction(self) -> str | None: ...


def _is_loss(part: object) -> TypeGuard[_Loss]:
    return hasattr(part, "reduction") and not hasattr(part, "update_state")  # which a metric has


def _is_known_value(value: object) -> bool:
    """Returns whether an attribute of a layer is known: no function or object of the script's own.

    Such an attribute may be e.g. an activation or a regularizer.
    """
    if not callable(value) or isinstance(value, type):
        return True
    return keras_origin.is_of_keras(value) or keras_origin.is_of_keras(type(value))


def _is_known_operation(operation: object) -> bool:
    by_element = type(operation).__name__ in _BY_ELEMENT and keras_origin.is_of_keras(
        type(operation)
    )
    return hasattr(operation, "stateful") or by_element


# Operations of functional models that compute each element by itself (seen in Keras 3.15.1).
_BY_ELEMENT = frozenset(
    {
        "Absolute", "Add", "Cast", "Clip", "Divide", "Exp", "Log", "Maximum", "Minimum", "Multiply", "Negative", "Power", "Relu", "Sigmoid", "Softplus",
        "Sqrt", "Square", "Subtract", "Tanh", "TrueDivide",
    }
)  # fmt: skip
