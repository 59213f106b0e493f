"""Programs of the whole batch, computed by workers that are threads of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from syrtos.comm.arrays import Array, share_of
from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.keras.tensorflow import tf_internals_emission
from syrtos.keras.tensorflow.partition.exchanges import Exchanges, gather_arrays, reduce_arrays
from syrtos.keras.tensorflow.partition.partitioner import Partitioner
from syrtos.keras.tensorflow.partition.report import Report
from syrtos.keras.tensorflow.partition.share import Share
from syrtos.keras.tensorflow.partition.values import Partial, Placement, RowPlacement, Value

# Each worker's exchange waits in a thread of TensorFlow's for those of the others. Where TensorFlow has begun to compute,
# it keeps the number of threads that it has.
with contextlib.suppress(RuntimeError):
    tf.config.threading.set_inter_op_parallelism_threads(16)
HAS_THREADS = tf.config.threading.get_inter_op_parallelism_threads() >= 16


class ThreadExchanges(Exchanges):
    """Exchanges between threads, which need no session of a worker."""

    def __init__(self, comm: InProcessCommunicator) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size

    def reduce(self, values: Sequence[Value]) -> list[tf.Tensor]:
        placement = values[0].placement
        assert isinstance(placement, Partial)
        return self._run(
            lambda arrays: reduce_arrays(self._comm, arrays, placement.op),
            [value.tensor for value in values],
            rows=False,
        )

    def gather(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._run(
            lambda arrays: [gather_arrays(self._comm, a) for a in arrays], tensors, rows=True
        )

    def _run(
        self,
        function: Callable[[list[Array]], list[Array]],
        tensors: Sequence[tf.Tensor],
        rows: bool,
    ) -> list[tf.Tensor]:
        found = tf.numpy_function(
            lambda *arrays: function([np.asarray(a) for a in arrays]),
            list(tensors),
            [t.dtype for t in tensors],
        )
        found = tf.nest.flatten(found)
        for result, tensor in zip(found, tensors, strict=True):
            if tensor.shape.rank is not None:
                result.set_shape([None, *tensor.shape[1:]] if rows else tensor.shape)
        return found


class Computed:
    """What workers have computed: for each of them its outputs and its variables.

    Attributes:
        outputs: the outputs of each worker, whole.
        placements: the placements of the outputs before they were made whole.
        report: the counts of rank 0's program.
        parallel_iterations: those of the loops of rank 0's program.
    """

    def __init__(self) -> None:
        self.outputs: list[list[Array]] = []
        self.placements: list[Placement] = []
        self.report = Report()
        self.parallel_iterations: set[int] = set()


def compute(
    function: Callable[..., Any],
    inputs: Sequence[Array],
    rows: Sequence[int | None],
    size: int,
    is_static: bool = False,
) -> Computed:
    """Computes a function on workers, each of which has its own copies of the variables.

    Args:
        function: takes tensors, returns a structure of tensors.
        inputs: the whole inputs.
        rows: for each input the dimension in which it has the rows of the batch; None: it has none.
        size: the number of workers.
        is_static: whether the number of rows is known while the function is traced.
    """
    total = next(x.shape[d] for x, d in zip(inputs, rows, strict=True) if d is not None)
    specs = [_spec(x, d, is_static) for x, d in zip(inputs, rows, strict=True)]
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    computed = Computed()
    programs = [
        _program(concrete, rows, comm, total if is_static else None, computed)
        for comm in InProcessCommunicator.world(size)
    ]

    computed.parallel_iterations = {
        inner.get_attr("parallel_iterations")
        for operation in programs[0].graph.get_operations()
        for inner in (operation, *tf_internals_emission.operations_called(operation))
        if inner.type in ("While", "StatelessWhile")
    }

    def run(rank: int) -> list[Array]:
        mine = [
            x if d is None else np.take(x, range(*share_of(total, rank, size)), axis=d)
            for x, d in zip(inputs, rows, strict=True)
        ]
        return [t.numpy() for t in programs[rank](tf.constant(total), *map(tf.constant, mine))]

    with ThreadPoolExecutor(size) as pool:
        computed.outputs = list(pool.map(run, range(size)))
    return computed


def _spec(array: Array, dim: int | None, is_static: bool) -> tf.TensorSpec:
    sizes = [None if d == dim and not is_static else n for d, n in enumerate(array.shape)]
    return tf.TensorSpec(sizes, array.dtype)


def _program(
    concrete: Any,
    rows: Sequence[int | None],
    comm: InProcessCommunicator,
    total: int | None,
    computed: Computed,
) -> Any:
    graph = concrete.graph
    copies = {id(v.handle): tf.Variable(v.numpy(), trainable=False) for v in graph.variables}
    captured = [
        copies[id(outside)].handle if id(outside) in copies else outside
        for outside, _ in graph.captures
    ]
    inputs = graph.inputs[: len(rows)]

    def local(dynamic: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
        share = Share.of(dynamic if total is None else total, comm.rank, comm.size)
        report = computed.report if comm.rank == 0 else Report()
        partitioner = Partitioner(share, ThreadExchanges(comm), report)
        values = [
            Value(t) if d is None else Value(t, RowPlacement(d))
            for t, d in zip(tensors, rows, strict=True)
        ]
        outputs = partitioner.run_graph(graph, [*values, *(Value(c) for c in captured)])
        computed.placements = [value.placement for value in outputs]
        return [*partitioner.wholes(outputs), *(copy.read_value() for copy in copies.values())]

    specs = [
        tf.TensorSpec([None if i == d else n for i, n in enumerate(t.shape)], t.dtype)
        for t, d in zip(inputs, rows, strict=True)
    ]
    made = tf.function(local, autograph=False)
    return made.get_concrete_function(tf.TensorSpec((), tf.int32), *specs)


def compute_whole(function: Callable[..., Any], inputs: Sequence[Array]) -> list[Array]:
    """Computes a function as one process does; returns its outputs and its variables."""
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    variables = concrete.graph.variables
    before = [v.numpy() for v in variables]
    found = concrete(*map(tf.constant, inputs))
    outputs = [t.numpy() for t in tf.nest.flatten(found)]
    outputs += [v.numpy() for v in variables]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    return outputs
