"""The private symbols of TensorFlow's `tf.data` pipelines. Seen to work on TensorFlow 2.21."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.data.util import structure
from tensorflow.python.framework import op_def_registry

from syrtos.records import record_of

# Stateful by name: checks, and calls of functions whose own operations tell.
_HARMLESS = frozenset({"Assert", "StatefulPartitionedCall", "If", "While", "Case"})
# Operations that go on from where they were, in a variable or in the order of their calls.
_STATE = frozenset(
    {"AssignVariableOp", "AssignAddVariableOp", "RngReadAndSkip", "RngSkip", "StatefulUniform"}
)
_RANDOM = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "SampleDistortedBoundingBoxV2",
        "TruncatedNormal",
    }
)
_PYTHON = frozenset({"EagerPyFunc", "PyFunc"})
# Data sets of data sets.
_OF_DATASETS = frozenset({"_ParallelInterleaveDataset", "_InterleaveDataset", "_FlatMapDataset"})
# Data sets that give what they are given in an order that does not depend on values.
_KEEP_RECORDS = frozenset(
    {
        "CacheDataset",
        "_BatchDataset",
        "_CacheDataset",
        "_ConcatenateDataset",
        "_MapDataset",
        "_OptionsDataset",
        "_PaddedBatchDataset",
        "_ParallelBatchDataset",
        "_ParallelMapDataset",
        "_PrefetchDataset",
        "_RepeatDataset",
        "_ShardDataset",
        "_ShuffleDataset",
        "_SkipDataset",
        "_TakeDataset",
        "_ZipDataset",
    }
)
# Operations that take microseconds for a small tensor.
_QUICK = frozenset([
    "Abs", "Add", "AddV2", "Cast", "ConcatV2", "Const", "Div", "ExpandDims", "Fill", "Identity", "Maximum", "Minimum", "Mul",
    "Neg", "NoOp", "OneHot", "Pack", "Placeholder", "RealDiv", "Reshape", "Shape", "Sqrt", "Square", "Squeeze", "StridedSlice",
    "Sub", "Transpose", "Unpack",
])  # fmt: skip
# Seconds for a call of a map's function, and for one quick operation of up to so many bytes,
# roughly.
_CALL, _OPERATION, _SMALL = 10e-6, 3e-6, 16 << 10


@dataclasses.dataclass
class _FunctionRecord:
    """The record of a data set's function: the types of its operations, once they are known."""

    operations: frozenset[str] | None = None


class MappedBatches(NamedTuple):
    """A pipeline ending in ``raw.map(f).map(g).batch(n)``, perhaps ``.repeat()``, ``.prefetch(m)``.

    Attributes:
        raw: the data set that is mapped; each element has one shape.
        maps: functions without side effects, from an element's tensors to those of the next.
        batch_size: n.
        drop_remainder: whether a last, smaller batch is left out.
        repeat: how often the batches come; -1 without end.
        prefetch: m; None without.
        seconds: what mapping the records of a batch takes, roughly; infinite where it is not known
            to be quick.
    """

    raw: tf.data.Dataset
    maps: list[Callable[[object], object]]
    batch_size: int
    drop_remainder: bool
    repeat: int
    prefetch: int | None
    seconds: float


def mapped_batches(dataset: tf.data.Dataset) -> MappedBatches | None:
    """Returns the parts of a `tf.data` pipeline ending like `MappedBatches`; None for another."""
    # By names of classes and attributes of `tensorflow.python.data.ops`: pipelines of other classes
    # are other ones.
    prefetch, repeat = None, 1
    while type(dataset).__name__ in ("_PrefetchDataset", "_OptionsDataset", "_RepeatDataset"):
        prefetch = int(dataset._buffer_size) if hasattr(dataset, "_buffer_size") else prefetch
        count = int(dataset._count) if hasattr(dataset, "_count") else 1
        repeat = -1 if -1 in (repeat, count) else repeat * count
        dataset = dataset._input_dataset
    if type(dataset).__name__ not in ("_BatchDataset", "_ParallelBatchDataset"):
        return None
    batches = dataset.element_spec
    size, drop, dataset, maps = (
        int(dataset._batch_size),
        bool(dataset._drop_remainder),
        dataset._input_dataset,
        [],
    )
    seconds = 0.0
    while type(dataset).__name__ in ("_MapDataset", "_ParallelMapDataset"):
        if _is_stateful(dataset):
            # E.g. random augmentation: each worker must draw the same numbers.
            break
        maps.insert(0, functools.partial(_call_map, dataset._map_func))
        seconds += size * _seconds_of_map(dataset)
        dataset = dataset._input_dataset
    if not all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(batches)):
        return None
    specs = tf.nest.flatten(dataset.element_spec)
    if not maps or not all(
        isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined() for spec in specs
    ):
        return None
    return MappedBatches(dataset, maps, size, drop, repeat, prefetch, seconds)


def _seconds_of_map(mapped: tf.data.Dataset) -> float:
    """Returns the approximate seconds to map one record; infinity unless known to be quick."""
    operations = mapped._map_func.function.graph.get_operations()
    shapes = [output.shape for operation in operations for output in operation.outputs]
    sizes = [output.dtype.size for operation in operations for output in operation.outputs]
    small = all(
        shape.is_fully_defined() and shape.num_elements() * size <= _SMALL
        for shape, size in zip(shapes, sizes, strict=True)
    )
    if not small or not all(operation.type in _QUICK for operation in operations):
        return math.inf
    return _CALL + _OPERATION * len(operations)


def has_maps_to_parallelize(dataset: tf.data.Dataset) -> bool:
    """Returns whether a pipeline has a `map` that can be made parallel, or one with state.

    TensorFlow's `map_parallelization` makes a `map` parallel that has no `num_parallel_calls` and
    no side effects. One that takes microseconds does not count.
    """
    # A map of one element, as Keras maps the number of an epoch to an order of samples, does not
    # count: there is nothing to make parallel.
    one_by_one = type(dataset).__name__ == "_MapDataset" and not _is_stateful(dataset)
    if (
        one_by_one
        and int(dataset._input_dataset.cardinality()) != 1
        and _seconds_of_map(dataset) == math.inf
    ):
        return True
    if type(dataset).__name__ == "_MapDataset" and _operations(dataset) & _STATE:
        # How far it is called ahead changes what the next iterator gets.
        return True
    return any(has_maps_to_parallelize(each) for each in dataset._inputs())


def is_left_to_threads(dataset: tf.data.Dataset) -> bool:
    """Returns whether threads decide which numbers records get, and nothing else.

    The records themselves and their order are the same wherever the pipeline is read.
    """
    if _numbers_differ(dataset):
        return True
    # E.g. a filter may leave out others of those records.
    if type(dataset).__name__ not in _KEEP_RECORDS:
        return False
    return any(is_left_to_threads(each) for each in dataset._inputs())


def _numbers_differ(dataset: tf.data.Dataset) -> bool:
    # Threads of a parallel `map` or `interleave` draw random numbers, or call Python, in the order
    # in which they come to it.
    kind = type(dataset).__name__
    if kind == "_ParallelMapDataset":
        calls = tf.get_static_value(dataset._num_parallel_calls)
        return calls != 1 and bool(_operations(dataset) & (_RANDOM | _STATE | _PYTHON))
    if kind in _OF_DATASETS:
        parallel = kind == "_ParallelInterleaveDataset" or "ParallelMapDatasetV2" in _operations(
            dataset
        )
        return parallel and bool(_operations(dataset) & (_RANDOM | _STATE))
    return False


def _is_stateful(mapped: tf.data.Dataset) -> bool:
    """Returns whether the function of a `map`, or one that it calls, has side effects.

    Such are random draws, calls of Python, and others.
    """
    known = [op_def_registry.get(op) for op in _operations(mapped) - _HARMLESS]
    return any(op is not None and op.is_stateful for op in known)


def _operations(dataset: tf.data.Dataset) -> frozenset[str]:
    """Returns the types of operations in a data set's function, and in functions that it calls."""
    function = dataset._map_func.function
    record = record_of(function, _FunctionRecord)
    if record.operations is None:
        graph = function.graph
        operations = graph.get_operations()
        found = {operation.type for operation in operations}
        if any(
            attr.type in ("func", "list(func)") for each in operations for attr in each.op_def.attr
        ):
            # Only then, for it copies the constants of the graph, which may be large.
            inner = graph.as_graph_def().library.function
            found.update(node.op for each in inner for node in each.node_def)
        record.operations = frozenset(found)
    return record.operations


# The wrapper is a `StructuredFunctionWrapper`, of which pyright infers that it has no function.
def _call_map(wrapper: Any, element: object) -> object:
    tensors = structure.to_tensor_list(wrapper._input_structure, element)
    return structure.from_compatible_tensor_list(
        wrapper.output_structure, wrapper.function(*tensors)
    )
