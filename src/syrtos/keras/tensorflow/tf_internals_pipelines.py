"""The symbols that TensorFlow keeps private of which a `tf.data` pipeline consists. Seen to work on TensorFlow 2.21."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.data.util import structure
from tensorflow.python.framework import op_def_registry

# Stateful by name: checks, and calls of functions whose own operations tell.
_HARMLESS = frozenset({"Assert", "StatefulPartitionedCall", "If", "While", "Case"})
_STATEFUL = "_syrtos_stateful"


class MappedBatches(NamedTuple):
    """A pipeline that ends in ``raw.map(f).map(g).batch(n)``, perhaps ``.repeat()``, ``.prefetch(m)``.

    Attributes:
        raw: what is mapped; each element has one shape.
        maps: functions without side effects, from an element's tensors to those of the next.
        batch_size: n.
        drop_remainder: whether a last, smaller batch is left out.
        repeat: how often the batches come; -1 without end.
        prefetch: m; None without.
    """

    raw: tf.data.Dataset
    maps: list[Any]
    batch_size: int
    drop_remainder: bool
    repeat: int
    prefetch: int | None


def mapped_batches(dataset: Any) -> MappedBatches | None:
    """What a `tf.data` pipeline is made of, if it ends like that.

    The classes and attributes of `tensorflow.python.data.ops`: a pipeline of others is None.
    """
    prefetch, repeat = None, 1
    while type(dataset).__name__ in ("_PrefetchDataset", "_OptionsDataset", "_RepeatDataset"):
        prefetch = int(dataset._buffer_size) if hasattr(dataset, "_buffer_size") else prefetch
        count = int(dataset._count) if hasattr(dataset, "_count") else 1
        repeat = -1 if -1 in (repeat, count) else repeat * count
        dataset = dataset._input_dataset
    if type(dataset).__name__ not in ("_BatchDataset", "_ParallelBatchDataset"):
        return None
    batches = dataset.element_spec
    size, drop, dataset, maps = int(dataset._batch_size), bool(dataset._drop_remainder), dataset._input_dataset, []
    while type(dataset).__name__ in ("_MapDataset", "_ParallelMapDataset"):
        if _is_stateful(dataset):
            break  # e.g. random augmentation: each worker must draw the same numbers
        maps.insert(0, functools.partial(_call_map, dataset._map_func))
        dataset = dataset._input_dataset
    if not all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(batches)):
        return None
    specs = tf.nest.flatten(dataset.element_spec)
    if not maps or not all(isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined() for spec in specs):
        return None
    return MappedBatches(dataset, maps, size, drop, repeat, prefetch)


def has_maps_to_parallelize(dataset: Any) -> bool:
    """Whether a pipeline has a `map` without `num_parallel_calls` that TensorFlow's `map_parallelization` makes parallel: one without side effects.

    Of one element, as Keras maps the number of an epoch to an order of samples, there is nothing to make parallel.
    """
    one_by_one = type(dataset).__name__ == "_MapDataset" and not _is_stateful(dataset)
    if one_by_one and int(dataset._input_dataset.cardinality()) != 1:
        return True
    return any(has_maps_to_parallelize(each) for each in dataset._inputs())


def is_left_to_threads(dataset: Any) -> bool:
    """Whether threads of a parallel `map` draw random numbers, or call Python, in the order in which they come to it."""
    if type(dataset).__name__ == "_ParallelMapDataset" and _is_stateful(dataset):
        calls = tf.get_static_value(dataset._num_parallel_calls)
        if calls is None or int(calls) != 1:
            return True
    return any(is_left_to_threads(each) for each in dataset._inputs())


def _is_stateful(mapped: Any) -> bool:
    """Whether the function of a `map`, or one that it calls, draws random numbers, calls Python, or has other side effects."""
    function = mapped._map_func.function
    if not hasattr(function, _STATEFUL):  # a big graph is read once
        graph = function.graph.as_graph_def()
        nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
        setattr(function, _STATEFUL, any(_has_effects(node.op) for node in nodes))
    return getattr(function, _STATEFUL)


def _has_effects(op: str) -> bool:
    known = op_def_registry.get(op)
    return known is not None and known.is_stateful and op not in _HARMLESS


def _call_map(wrapper: Any, element: Any) -> Any:
    tensors = structure.to_tensor_list(wrapper._input_structure, element)
    return structure.from_compatible_tensor_list(wrapper.output_structure, wrapper.function(*tensors))
