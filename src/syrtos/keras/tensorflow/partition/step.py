"""A step of Keras as a partitioned program: traced on the whole batch, emitted for a worker's rows."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from syrtos.comm.arrays import Array
from syrtos.comm.world import Session
from syrtos.errors import SyrtosError
from syrtos.keras.replica import state
from syrtos.keras.split import noted_gradients
from syrtos.keras.split.described_errors import describe_error
from syrtos.keras.tensorflow import (
    gathering,
    ops,
    tf_internals_emission,
    tf_internals_graphs,
)
from syrtos.keras.tensorflow.assignments import as_one_process
from syrtos.keras.tensorflow.input import Numbered, TensorShare
from syrtos.keras.tensorflow.input_comparison import compare_numbered
from syrtos.keras.tensorflow.partition import error_lines
from syrtos.keras.tensorflow.partition.draw_counters import DrawCounters
from syrtos.keras.tensorflow.partition.exchanges import Exchanges, WorkerExchanges
from syrtos.keras.tensorflow.partition.partitioner import GraphRun, Partitioner
from syrtos.keras.tensorflow.partition.report import Report
from syrtos.keras.tensorflow.partition.segments import CompiledPrograms
from syrtos.keras.tensorflow.partition.share import Share
from syrtos.keras.tensorflow.partition.values import RowPlacement, Value
from syrtos.keras.tensorflow.rows import count_rows, has_rows
from syrtos.keras.tensorflow.step import count_step, ready_at
from syrtos.keras.tensorflow.tf_internals_emission import TracedGraph
from syrtos.keras.trainer import exchange_plan
from syrtos.keras.trainer.timing import StepClock

if TYPE_CHECKING:
    from syrtos.keras.protocols import Variable
    from syrtos.keras.tensorflow.types import BatchStep


FEW_ROWS = "its batch has fewer rows than there are workers"
_NO_ROWS = (
    "its batches have no dense tensors with a row for each worker (ragged and sparse tensors, and"
    " tensors of unknown rank, are not partitioned)"
)


class PartitionedStep:
    """A function of batches, as a program that all workers compute together.

    Attributes:
        report: counts of the program that was traced last.
        failure: why a program could not be emitted; empty if all could. From then on every worker
            computes whole batches.
        reason_whole: why every worker is to compute whole batches, where its caller knows; else
            empty.
    """

    def __init__(
        self,
        step: BatchStep,
        session: Session,
        training: bool,
        tell: Callable[[str], None],
        partitioner: Callable[..., Partitioner] = Partitioner,
        compiles: bool = False,
    ) -> None:
        """
        Args:
            step: computes a whole batch, as one process would.
            session: the workers.
            training: whether it is a step of `fit`.
            tell: is called with the reason where every worker computes whole batches.
            partitioner: makes what emits a program.
            compiles: whether XLA compiles the program, in segments between its exchanges.
        """
        self._compiled = CompiledPrograms() if compiles else None
        self._tell = tell
        self._partitioner = partitioner
        self.step = step
        self.report = Report()
        self.failure = ""
        self.reason_whole = ""
        self._session = session
        self._training = training
        # Functions of Python that operations call live as long as the graph that names them.
        self._traced: list[TracedStep] = []

    def __call__(self, batch: Numbered | TensorShare) -> object:
        """Computes a step on a batch; every worker gets the outputs of the whole batch.

        Raises:
            Exception: the step's own, while it is traced; or any while its program is emitted, which
                `failure` then describes. The function that called this is then to be traced again.
        """
        rows = self.rows_of(batch)
        asked = self.reason_whole or self.failure
        if why := asked or why_whole(rows, tf.executing_eagerly()):
            if why != FEW_ROWS:  # as the last batch of many an epoch
                self._tell(why)
            self._note(rows)
            return self._compute_whole(rows)
        return self.emit(self.trace(rows), rows)

    def naming_lines(self) -> contextlib.AbstractContextManager[None]:
        """Context manager: errors at run time name the lines of the script."""
        return error_lines.naming_lines(program.concrete.graph for program in self._traced)

    def rows_of(self, batch: Numbered | TensorShare) -> BatchRows:
        """Returns this worker's rows of a batch. All workers call this together."""
        if isinstance(batch, TensorShare):
            return _rows_of_share(batch, self._session)
        return _rows_of(batch, self._session)

    def _compute_whole(self, rows: BatchRows) -> object:
        if self._compiled is None or tf.executing_eagerly():
            with as_one_process():
                return self.step(rows.whole())
        program = self.trace(rows)
        graph = program.concrete.graph
        given = [*rows.whole_tensors(), *(outside for outside, _ in graph.captures)]
        found = {own.ref(): tensor for own, tensor in zip(graph.inputs, given, strict=True)}
        operations = [
            op
            for op in tf_internals_emission.in_topological_order(graph)
            if op.type != "Placeholder"
        ]
        return program.pack(
            self._add(
                lambda: tf_internals_emission.copy_operations(graph, operations, found, {}), None
            )
        )

    def _add(
        self, build: Callable[[], Sequence[tf.Tensor]], counters: DrawCounters | None
    ) -> list[tf.Tensor]:
        """Adds what ``build`` adds to the current graph; XLA compiles it, if it is to.

        Draws by counters are not compiled: XLA would make other numbers of them.
        """
        if self._compiled is None:
            return list(build())
        return self._compiled.add(build, self.report, counters.made if counters else ())

    def emit(self, program: TracedStep, rows: BatchRows) -> object:
        """Emits a program of the whole batch for this worker's rows.

        Args:
            program: as `trace` returns it.
            rows: see `rows_of`.

        Returns:
            The outputs of the step for the whole batch.

        Raises:
            Exception: a rule has failed; `failure` describes it.
        """
        try:
            return self._emit(program, rows)
        except SyrtosError:
            raise
        # Any error of a rule, or of TensorFlow in one: what is not understood is computed whole.
        except Exception as error:
            self.failure = f"its program can't be divided: {describe_error(error)}"
            raise

    def _emit(self, program: TracedStep, rows: BatchRows) -> object:
        self._traced.append(program)
        self.report = Report()
        graph = program.concrete.graph
        captured = [Value(outside) for outside, _ in graph.captures]
        exchanges = WorkerExchanges(self._session, rows.share)
        partitioner = self._partitioner(rows.share, exchanges, self.report, program.gradients)
        partitioner.counters = program.counters
        partitioner.is_compiled = self._compiled is not None
        if rows.is_always_split:
            self._note(rows)

            def emit_rows() -> list[tf.Tensor]:
                run = GraphRun(partitioner, graph, [*rows.split(), *captured])
                run.emit_all()
                return partitioner.wholes(run.outputs())

            outputs = self._add(emit_rows, program.counters)
        else:
            outputs = self._emit_by_batch(partitioner, graph, rows, captured)
        if self._training:
            self._tell_exchanges(exchanges)
        return program.pack(outputs)

    def _tell_exchanges(self, exchanges: WorkerExchanges) -> None:
        """Notes for the report what is gathered, and in which buckets gradients travel."""
        if whole := self.report.describe_whole():
            self._session.ledger.say(computed_whole=whole)
        if self._compiled:
            apart = self.report.describe_uncompiled()
            self._session.ledger.say(compiled=f"all but {apart}" if apart else "all of it")
        variables = state.unique(v for bucket in exchanges.gradients_of for v in bucket)
        places = {id(variable): place for place, variable in enumerate(variables)}
        buckets = [[places[id(v)] for v in bucket] for bucket in exchanges.gradients_of]
        if variables:
            exchange_plan.tell(variables, lambda: buckets)

    def _emit_by_batch(
        self, partitioner: Partitioner, graph: TracedGraph, rows: BatchRows, captured: list[Value]
    ) -> list[tf.Tensor]:
        """Emits a program that computes batches of too few, or of unequal, rows whole."""
        of_batch = graph.inputs[: len(rows.specs())]
        # What does not depend on the batch is not to wait for it: where data ends, plain TensorFlow
        # has counted one update more.
        before, after = tf_internals_emission.independent_of(
            graph, of_batch, partitioner.gradients_in(graph)
        )
        first = GraphRun(partitioner, graph, [*[Value(t) for t in rows.tensors], *captured])
        first.emit(before)

        def split() -> list[tf.Tensor]:
            child = partitioner.child()
            run = first.within(child, list(zip(of_batch, rows.split(), strict=True)))
            run.emit(after)
            return child.wholes(run.outputs()) or [tf.constant(0)]

        def whole() -> list[tf.Tensor]:
            given = zip(of_batch, rows.whole_tensors(), strict=True)
            found = first.tensors() | {tensor.ref(): whole for tensor, whole in given}
            waiting = [op for op in after if op.type != "Placeholder"]
            draws = partitioner.counters.copies_of(waiting) if partitioner.counters else {}
            copied = tf_internals_emission.copy_operations(graph, waiting, found, draws)
            return copied or [tf.constant(0)]

        self._note(rows)
        made = tf.cond(
            rows.can_be_split(),
            lambda: self._add(split, partitioner.counters),
            lambda: self._add(whole, partitioner.counters),
        )
        made = made if isinstance(made, list | tuple) else [made]
        for tensor, like in zip(made, graph.outputs, strict=False):
            tensor.set_shape(like.shape)
        return list(made)[: len(graph.outputs)]

    def trace(self, rows: BatchRows) -> TracedStep:
        """Returns the step's program of the whole batch."""
        notes = GradientTerms(self._session)

        def compute(*tensors: tf.Tensor) -> object:
            notes.clear()  # a function that makes variables is traced twice
            with noted_gradients.noting_gradients(notes.note, updates=True):
                return self.step(rows.pack(tensors))

        function = tf.function(compute, autograph=False)
        # The variables that a first step makes are given their values here too.
        with as_one_process():
            concrete = function.get_concrete_function(*rows.specs())
        return TracedStep(concrete, notes.variables, notes.has_update)

    def _note(self, rows: BatchRows) -> None:
        """Counts the samples of a step, and the time for which it waited for its data."""
        session, training = self._session, self._training

        def note(when: Array, samples: Array) -> Array:
            count_step(session, training, when, float(samples))
            return np.zeros((), np.int32)

        if tf_internals_graphs.graph() is not None:
            session.part(StepClock).step_is_traced()
        with tf.device("/cpu:0"):
            samples = tf.cast(rows.share.count, tf.float32)
            tf.numpy_function(note, [ready_at(rows.tensors), samples], tf.int32, stateful=True)


class GradientTerms:
    """Notes the gradients that optimizers are given while a program is traced.

    Attributes:
        variables: the gradients' variables, by the references of the tensors that a tape gave.
        has_update: whether an optimizer makes an update.
    """

    def __init__(self, session: Session) -> None:
        self.variables: dict[Any, object] = {}
        self.has_update = False
        self._compresses = session.options.compress != "none"

    def clear(self) -> None:
        """Forgets what was noted."""
        self.variables.clear()
        self.has_update = False

    def note(
        self, optimizer: object, gradients: Sequence[Any], variables: Sequence[Variable]
    ) -> None:
        """Notes an update."""
        self.has_update = True
        # What a codec keeps of scaled gradients would be of no use at another scale.
        if self._compresses and hasattr(optimizer, "inner_optimizer"):
            return
        for gradient, variable in zip(gradients, state.held_objects(variables), strict=False):
            if isinstance(gradient, tf.Tensor):
                self.variables.update(dict.fromkeys(_terms_of(gradient), variable))


@dataclasses.dataclass
class TracedStep:
    """A step on a whole batch, as it was traced.

    Attributes:
        concrete: takes the batch's tensors.
        gradients: the variables whose gradients an optimizer takes, by the references of these
            tensors.
        makes_updates: whether an optimizer makes an update in it.
        counters: those of its random operations.
    """

    concrete: Any
    gradients: Mapping[Any, object]
    makes_updates: bool

    @functools.cached_property
    def counters(self) -> DrawCounters:
        return DrawCounters(self.concrete.graph)

    def pack(self, outputs: Sequence[tf.Tensor]) -> Any:
        """Returns tensors in the structure of the step's outputs."""
        structure = self.concrete.structured_outputs
        flat = tf.nest.flatten(structure, expand_composites=True)
        return with_tensors(structure, flat, outputs)


# A gradient that a script has clipped or scaled, or to which a penalty of weights was added.
_SCALING = ("AddN", "AddV2", "Cast", "Identity", "Mul", "RealDiv", "DivNoNan")


def _terms_of(gradient: tf.Tensor) -> Iterator[Any]:
    """Yields the references of the tensors of which a gradient is made, as the tape gave them."""
    inputs = gradient.op.inputs if gradient.op.type in _SCALING else ()
    alike = [tensor for tensor in inputs if tensor.shape == gradient.shape]
    if not alike:
        yield gradient.ref()
    for tensor in alike:
        yield from _terms_of(tensor)


def why_whole(rows: BatchRows, eagerly: bool) -> str:
    """Returns why every worker computes a whole batch; empty where a step on it is partitioned."""
    if eagerly:
        return "it runs eagerly"
    if rows.dense:
        return ""
    is_ranked = any(tensor.shape.rank for tensor in rows.tensors)
    return FEW_ROWS if rows.share.is_static and is_ranked else _NO_ROWS


@dataclasses.dataclass
class BatchRows:
    """The tensors of a batch, and which of them have its rows.

    Attributes:
        structure: the batch as the step takes it.
        flat: its leaves, the components of ragged and sparse tensors among them.
        tensors: those that are tensors, whole or, where ``is_share``, this worker's rows of them.
        dense: the places of tensors that have the batch's rows.
        share: this worker's rows.
        exchanges: the other workers.
        is_share: whether ``tensors`` are this worker's rows alone.
        shares_can_be_split: Boolean scalar, in a share: whether all workers have rows, of which their
            tensors have equally many.
    """

    structure: Any
    flat: list[Any]
    tensors: list[tf.Tensor]
    dense: list[int]
    share: Share
    exchanges: Exchanges
    is_share: bool = False
    shares_can_be_split: Any = True

    @property
    def is_always_split(self) -> bool:
        """True where it is known that each worker has rows, and tensors have equally many."""
        return self.share.is_static and self.share.total >= self.exchanges.size

    def can_be_split(self) -> tf.Tensor:
        """Returns whether each worker has rows, and tensors have equally many; a Boolean scalar."""
        # In a batch of one row a size of 1 may be the rows, or be broadcast.
        conditions = [self.share.total >= self.exchanges.size]
        if self.is_share:
            conditions.append(self.shares_can_be_split)
        else:
            conditions += [tf.shape(self.tensors[i])[0] == self.share.total for i in self.dense[1:]]
        return tf.reduce_all(tf.stack(conditions))

    def specs(self) -> list[tf.TensorSpec]:
        """Returns the specs of the whole batch's tensors."""
        found = []
        for i, tensor in enumerate(self.tensors):
            shape = tensor.shape
            if i in self.dense and not self.share.is_static:
                shape = [None, *shape[1:]]
            found.append(tf.TensorSpec(shape, tensor.dtype))
        return found

    def pack(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Returns tensors in the structure of the batch."""
        return with_tensors(self.structure, self.flat, tensors)

    def split(self) -> list[Value]:
        """Returns this worker's rows."""
        values = []
        for i, tensor in enumerate(self.tensors):
            if i not in self.dense:
                values.append(Value(tensor))
                continue
            mine = tensor if self.is_share else tensor[self.share.start : self.share.stop]
            count = self.share.count if self.share.is_static else None
            mine.set_shape([count, *tensor.shape[1:]])
            values.append(Value(mine, RowPlacement(0), gathered=None if self.is_share else tensor))
        return values

    def whole(self) -> Any:
        """Returns the whole batch in its structure."""
        return self.pack(self.whole_tensors())

    def whole_tensors(self) -> list[tf.Tensor]:
        """Returns the tensors of the whole batch. All workers call this together."""
        if not self.is_share:
            return self.tensors
        gathered = iter(self.exchanges.gather([self.tensors[i] for i in self.dense]))
        return [next(gathered) if i in self.dense else t for i, t in enumerate(self.tensors)]


def _rows_of(batch: Numbered, session: Session) -> BatchRows:
    """Returns the rows of a whole batch, which the workers compare now and then."""
    flat = tf.nest.flatten(batch.data, expand_composites=True)
    with (
        tf.device("/cpu:0"),
        tf.control_dependencies([compare_numbered(batch.number, batch.data, session.input_comm)]),
    ):
        tensors = [tf.identity(leaf) for leaf in flat if isinstance(leaf, tf.Tensor)]
    return rows_among(with_tensors(batch.data, flat, tensors), session)


def rows_among(data: Any, session: Session) -> BatchRows:
    """Returns the rows of a structure of tensors, which is the same on all workers."""
    comm = session.comm
    flat = tf.nest.flatten(data, expand_composites=True)
    if len(flat) != len(tf.nest.flatten(data)):  # ragged or sparse tensors
        return _whole_rows(data, session)
    tensors = [leaf for leaf in flat if isinstance(leaf, tf.Tensor)]
    total, dense = _batch_rows_among(tensors, comm.size)
    share = Share.of(total, comm.rank, comm.size)
    return BatchRows(data, flat, tensors, dense, share, WorkerExchanges(session, share))


def _batch_rows_among(tensors: Sequence[tf.Tensor], workers: int) -> tuple[Any, list[int]]:
    """Returns how many rows a batch has, an int where that is static, and which tensors have them."""
    ranked = [i for i, tensor in enumerate(tensors) if tensor.shape.rank]
    if dynamic := [i for i in ranked if tensors[i].shape[0] is None]:
        return tf.shape(tensors[dynamic[0]])[0], dynamic
    total = (tensors[ranked[0]].shape[0] or 0) if ranked else 1
    # A batch of fewer rows than workers is computed whole.
    dense = [i for i in ranked if tensors[i].shape[0] == total] if total >= workers else []
    return total, dense


def _whole_rows(data: Any, session: Session) -> BatchRows:
    """Returns a whole batch of which no tensor is known to have the batch's rows."""
    comm = session.comm
    flat = tf.nest.flatten(data, expand_composites=True)
    tensors = [tf.identity(leaf) for leaf in flat if isinstance(leaf, tf.Tensor)]
    leaf = next((leaf for leaf in tf.nest.flatten(data) if has_rows(leaf)), None)
    count = 1 if leaf is None else tf.cast(count_rows(leaf), tf.int32)
    share = Share.of(count, comm.rank, comm.size)
    return BatchRows(data, flat, tensors, [], share, WorkerExchanges(session, share))


def _rows_of_share(batch: TensorShare, session: Session) -> BatchRows:
    """Returns the rows of a share that a pipeline has cut; the workers add up their numbers."""
    comm = session.comm
    samples = tf.cast(batch.samples, tf.int32)
    flat = tf.nest.flatten(batch.data, expand_composites=True)
    are_plain = all(leaf.shape.rank is not None for leaf in flat if isinstance(leaf, tf.Tensor))
    if len(flat) != len(tf.nest.flatten(batch.data)) or not are_plain:  # ragged or sparse tensors
        return _whole_rows(gathering.rows_of_all(comm, samples > 0, batch.data), session)
    tensors = [tf.identity(leaf) for leaf in flat if isinstance(leaf, tf.Tensor)]
    dense = [i for i, tensor in enumerate(tensors) if tensor.shape.rank]
    counts = [tf.shape(tensors[i])[0] for i in dense]
    # A worker without samples has a row that does not count.
    is_empty = samples == 0
    uneven = tf.reduce_any(
        [tf.logical_and(count != samples, tf.logical_not(is_empty)) for count in counts]
    )
    # A pipeline may give the workers any numbers of rows, e.g. where records are left out.
    mine = tf.stack([samples, tf.cast(uneven, tf.int32)])
    everyone = tf.ensure_shape(ops.allgather(comm, mine[tf.newaxis]), [comm.size, 2])
    before = tf.reduce_sum(everyone[: comm.rank, 0])
    share = Share(before, before + samples, tf.reduce_sum(everyone[:, 0]))
    can_be_split = (everyone[:, 0] > 0) & (everyone[:, 1] == 0)
    for i, count in zip(dense, counts, strict=True):
        tensors[i] = tensors[i][: tf.where(is_empty, 0, count)]
    return BatchRows(
        batch.data,
        flat,
        tensors,
        dense,
        share,
        WorkerExchanges(session, share),
        is_share=True,
        shares_can_be_split=tf.reduce_all(can_be_split),
    )


def with_tensors(structure: Any, flat: Sequence[Any], tensors: Sequence[tf.Tensor]) -> Any:
    """Returns a structure with other tensors; other leaves stay."""
    left = iter(tensors)
    found = [next(left) if isinstance(leaf, tf.Tensor) else leaf for leaf in flat]
    return tf.nest.pack_sequence_as(structure, found, expand_composites=True)
