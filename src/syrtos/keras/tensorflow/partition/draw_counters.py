"""Counters of the random operations of a program, which all its branches draw on by.

An operation such as `RandomUniform` keeps the counter of its generator in its kernel, one for each
graph that it is copied to. In a program that computes some batches on rows and others whole, each
branch would draw the numbers that the other has drawn. Here the counter is a variable.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.arrays import Array
from syrtos.comm.world import Session
from syrtos.keras.tensorflow import tf_internals_emission

PHILOX = 1  # TensorFlow's number of the algorithm
# The same draws without a counter of their own, and the types of their inputs after the shape.
STATELESS = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
}
# Operations that draw by a counter in their kernel.
DRAWING = frozenset(STATELESS) | {
    *("Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoisson"),
    *("RandomPoissonV2", "RandomShuffle"),
}
# Kernels leave so many counts free for each number: some distributions take a varying number of
# them (`random_op.cc`, `GuardedPhiloxRandom::ReserveRandomOutputs`).
_RESERVED = 256
_KEPT = "tensorflow drew "
# Inputs of the draws without a counter of their own, after the shape.
_INPUTS = ("key", "counter", "algorithm")


@dataclasses.dataclass(frozen=True)
class DrawCounter:
    """The generator of one random operation.

    Attributes:
        seed, seed2: the operation's.
        drawn: int64 variable: how many counts were used.
        made: takes the operations that use the variable.
    """

    seed: int
    seed2: int
    drawn: tf.Variable
    made: set[tf.Operation] = dataclasses.field(default_factory=set, compare=False)

    def begin(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the key, uint64 of shape (1,), and the counter, of shape (2,), of the next draw."""
        # As `PhiloxRandom(seed, seed2)` begins: the first is the key, the second counts above.
        key, high = (
            tf.constant(np.array([each], np.int64).view(np.uint64))
            for each in (self.seed, self.seed2)
        )
        with self._noting():
            drawn = self.drawn.read_value()
        return key, tf.concat([tf.cast(drawn[tf.newaxis], tf.uint64), high], 0)

    def advance(self, counter: tf.Tensor, numbers: tf.Tensor | int) -> None:
        """Moves on past a draw of so many numbers, which began at ``counter``."""
        used = tf.cast(numbers, tf.int64) * _RESERVED
        after = tf.cast(counter[0], tf.int64) + used
        with self._noting():
            self.drawn.assign(after, read_value=False)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Notes what is added within: the variable is in the host's memory, the step may not be."""
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        yield
        self.made.update(graph.get_operations()[before:])


class KeptCounters:
    """The counters of all programs of this process, for its snapshots.

    They are named by their operations, and by the number of the trace that they belong to.
    """

    def __init__(self, _session: Session) -> None:
        self._counters: weakref.WeakValueDictionary[str, DrawCounter] = (
            weakref.WeakValueDictionary()
        )
        self._numbers: collections.Counter[str] = collections.Counter()
        self._to_come: dict[str, int] = {}

    def add(self, operation: str, generator: DrawCounter) -> None:
        """Takes a new counter, which goes on where a snapshot says."""
        self._numbers[operation] += 1
        name = f"{_KEPT}{operation} {self._numbers[operation]}"
        self._counters[name] = generator
        if name in self._to_come:
            with tf.init_scope():
                generator.drawn.assign(self._to_come.pop(name))

    def arrays(self) -> dict[str, Array]:
        """Returns how far each counter is, for a snapshot."""
        return {
            name: generator.drawn.numpy().reshape(1) for name, generator in self._counters.items()
        }

    def put_back(self, arrays: Mapping[str, Array]) -> None:
        """Lets the counters go on where those of a snapshot, as `arrays` gave it, were."""
        kept = {name: array for name, array in arrays.items() if name.startswith(_KEPT)}
        self._to_come = {name: int(array.view(np.int64)[0]) for name, array in kept.items()}
        for name in self._to_come.keys() & self._counters.keys():
            self._counters[name].drawn.assign(self._to_come.pop(name))


class DrawCounters:
    """The counters of one traced program, which must live as long as it.

    Attributes:
        made: the operations that were emitted to draw by the counters, and that move these on.
    """

    def __init__(self, graph: object) -> None:
        """``graph``: that of the program."""
        self.made: set[tf.Operation] = set()
        self._graph = graph
        self._found: dict[str, DrawCounter] = {}
        self._functions: dict[tuple[tf.Operation, ...], Any] = {}

    def of(self, op: tf.Operation) -> DrawCounter | None:
        """Returns the counter of a random operation; None where it keeps its own.

        It does in functions inside of the program, without seeds, and in graphs of TensorFlow 1.
        """
        if op.type not in STATELESS or op.graph is not self._graph:
            return None
        seed, seed2 = (int(op.get_attr(name)) for name in ("seed", "seed2"))
        if not seed and not seed2:
            return None
        if op.name not in self._found:
            drawn = tf_internals_emission.make_counter()
            if drawn is None:
                return None
            self._found[op.name] = DrawCounter(seed, seed2, drawn, self.made)
            if world.is_initialized():
                world.part(KeptCounters).add(op.name, self._found[op.name])
        return self._found[op.name]

    def uncounted(self, operations: Sequence[tf.Operation]) -> list[str]:
        """Returns the kinds of draws that keep their own counter, functions inside included."""
        kinds = {op.type for op in operations if op.type in DRAWING and self.of(op) is None}
        if any("func" in kind.type for op in operations for kind in op.op_def.attr):
            library = operations[0].graph.as_graph_def().library
            inside = {node.op for function in library.function for node in function.node_def}
            kinds |= inside & DRAWING
        return sorted(kinds)

    def call_function(
        self, op: tf.Operation, callers: Sequence[tf.Operation], tensors: Sequence[tf.Tensor]
    ) -> tf.Operation:
        """Adds a call of the function that draws for an operation without a counter of ours.

        All branches call the same function, whose one kernel counts on.

        Args:
            op: the operation.
            callers: the calls, branches and loops that it stands in.
            tensors: its inputs.

        Returns:
            The call, whose outputs are the operation's.
        """
        key = (*callers, op)
        if key not in self._functions:
            function = tf.function(
                lambda *given: tf_internals_emission.emit(op, given).outputs,
                autograph=False,
                experimental_attributes={"_noinline": True},
            )
            specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in op.inputs]
            with tf.init_scope():
                self._functions[key] = function.get_concrete_function(*specs)
        # Of a function that is called with a constant Grappler would make another one.
        given = [tf.raw_ops.PlaceholderWithDefault(input=t, shape=t.shape) for t in tensors]
        called = self._functions[key](*given)[0].op
        self.made.add(called)
        return called

    def copies_of(self, operations: Sequence[tf.Operation]) -> dict[str, _CopiedDraw]:
        """Returns the operations that have counters, by name, as the current graph is to draw."""
        found = ((op.name, self.of(op)) for op in operations)
        return {
            name: _CopiedDraw(name, generator, *generator.begin())
            for name, generator in found
            if generator is not None
        }


def draw_stateless(
    kind: str,
    shape: tf.Tensor,
    key: tf.Tensor,
    counter: tf.Tensor,
    bounds: Sequence[tf.Tensor],
    dtype: tf.DType,
) -> tf.Tensor:
    """Draws by an operation of `STATELESS`; ``bounds``: the least integer, and that above them."""
    given = dict(zip(("minval", "maxval"), bounds, strict=False)) or {"dtype": dtype}
    make: Any = getattr(tf.raw_ops, kind)
    return make(shape=shape, key=key, counter=counter, alg=PHILOX, **given)


@dataclasses.dataclass(frozen=True)
class _CopiedDraw:
    """A random operation in a copied graph, which is to draw by a counter."""

    name: str
    generator: DrawCounter
    key: tf.Tensor
    counter: tf.Tensor

    @property
    def inputs(self) -> dict[str, tf.Tensor]:
        given = (self.key, self.counter, tf.constant(PHILOX))
        return {f"{self.name}/{name}:0": t for name, t in zip(_INPUTS, given, strict=True)}

    def replace(self, node: Any) -> None:
        shape, *bounds = [name for name in node.input if name[0] != "^"]
        waits = [name for name in node.input if name[0] == "^"]
        own = [f"{self.name}/{name}" for name in _INPUTS]
        del node.input[:]
        node.input.extend([shape, *own, *bounds, *waits])
        dtype = node.attr["Tout" if bounds else "dtype"].type
        kind = node.attr["T"].type
        node.op = STATELESS[node.op]
        for name in ("seed", "seed2", "Tout", "T", "dtype"):
            node.attr.pop(name, None)
        node.attr["dtype"].type, node.attr["Tshape"].type = dtype, kind

    def advance(self, drawn: tf.Tensor) -> None:
        self.generator.made.add(drawn.op)
        self.generator.advance(self.counter, tf.size(drawn))
