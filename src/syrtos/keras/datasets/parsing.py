"""Turns the records of a batch into its arrays or tensors, by a function that knows one record."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import keras
import numpy as np

from syrtos.data.sources import leaves, stack_records

if TYPE_CHECKING:
    import tensorflow as tf

    # A tensor of all records, or a tensor of each of their values.
    _Columns = tf.Tensor | tuple[tf.Tensor, ...]

Label = TypeVar("Label")
# Makes a batch of the records that a source has read.
Parse = Callable[[Any], object]


def each(parse_fn: Callable[..., Any]) -> Parse:
    """Returns a function of a list of records, made of ``parse_fn``, which parses one record.

    A record is bytes, or several values. A ``parse_fn`` written with TensorFlow's operations
    becomes a graph that takes all records of a batch in parallel; others get NumPy values and
    Python's bytes. What it returns for a first record shows which it is.
    """
    chosen: list[Parse] = []

    def parse(records: Sequence[object]) -> object:
        if not chosen:
            first = records[0]
            returned = parse_fn(*first) if isinstance(first, tuple) else parse_fn(first)
            chosen.append(
                _in_graph(parse_fn)
                if _are_tensors(returned)
                else functools.partial(_one_by_one, parse_fn)
            )
        return chosen[0](records)

    return parse


def _are_tensors(returned: Any) -> bool:
    return keras.backend.backend() == "tensorflow" and any(
        type(leaf).__module__.startswith("tensorflow.") for leaf in leaves(returned)
    )


def _one_by_one(parse_fn: Callable[..., Any], records: Sequence[object]) -> object:
    return stack_records(
        [parse_fn(*record) if isinstance(record, tuple) else parse_fn(record) for record in records]
    )


def _in_graph(parse_fn: Callable[..., Any]) -> Parse:
    import tensorflow as tf

    def at_once(records: _Columns) -> object:
        function = (lambda parts: parse_fn(*parts)) if isinstance(records, tuple) else parse_fn
        return tf.vectorized_map(function, records, fallback_to_while_loop=False)

    @tf.function(reduce_retracing=True)
    def in_parallel(records: _Columns) -> object:
        count = tf.shape(tf.nest.flatten(records)[0], tf.int64)[0]
        dataset = tf.data.Dataset.from_tensor_slices(records)
        return (
            dataset.map(parse_fn, tf.data.AUTOTUNE, deterministic=True)
            .batch(count)
            .get_single_element()
        )

    chosen: list[Callable[[_Columns], object]] = []

    def parse(records: Sequence[Any]) -> object:
        several = isinstance(records[0], tuple)
        columns = (
            tuple(tf.constant([*column]) for column in zip(*records, strict=True))
            if several
            else tf.constant([*records])
        )
        with tf.device("/cpu:0"):
            if not chosen:
                chosen.append(_trace(at_once, columns) or in_parallel)
            return chosen[0](columns)

    return parse


def _trace(
    function: Callable[[_Columns], object], columns: _Columns
) -> Callable[[_Columns], object] | None:
    """Returns a graph for any number of records.

    None where an operation has no form for many, e.g. one that decodes images.
    """
    import tensorflow as tf

    specs = tf.nest.map_structure(
        lambda column: tf.TensorSpec([None, *column.shape[1:]], column.dtype), columns
    )
    traced: Any = tf.function(function)  # the stub leaves out its methods
    try:
        return traced.get_concrete_function(specs)
    except Exception:
        return None


def image(size: tuple[int, int], data: Any, label: Label) -> tuple[object, Label]:
    """Decodes a picture in any of the usual formats, and returns it with its class.

    The picture is float32 of shape (height, width, 3), with values 0 to 255.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        decoded = tf.io.decode_image(data, channels=3, expand_animations=False)
        return tf.ensure_shape(tf.image.resize(decoded, list(size)), (*size, 3)), label
    from PIL import Image

    picture = (
        Image.open(io.BytesIO(data))
        .convert("RGB")
        .resize((size[1], size[0]), Image.Resampling.BILINEAR)
    )
    return np.asarray(picture, np.float32), label
