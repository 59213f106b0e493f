"""A step of Keras as a partitioned program: traced on the whole batch, emitted for a worker's rows."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
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
    tf_internals_emission,
    tf_internals_graphs,
)
from syrtos.keras.tensorflow.assignments import as_one_process
from syrtos.keras.tensorflow.input import Numbered, TensorShare
from syrtos.keras.tensorflow.partition import error_lines
from syrtos.keras.tensorflow.partition.batch_rows import (
    BatchRows,
    rows_of_numbered,
    rows_of_share,
    with_tensors,
)
from syrtos.keras.tensorflow.partition.draw_counters import DrawCounters
from syrtos.keras.tensorflow.partition.exchanges import WorkerExchanges
from syrtos.keras.tensorflow.partition.partitioner import GraphRun, Partitioner, unshared_draws
from syrtos.keras.tensorflow.partition.report import Report
from syrtos.keras.tensorflow.partition.segments import CompiledPrograms
from syrtos.keras.tensorflow.partition.values import Value
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
            return rows_of_share(batch, self._session)
        return rows_of_numbered(batch, self._session)

    def _compute_whole(self, rows: BatchRows) -> object:
        # What could not be emitted is not cut into segments either.
        if self._compiled is None or self.failure or tf.executing_eagerly():
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
        needed = partitioner.gradients_in(graph)
        if self._compiled:
            # A compiled step begins when its batch is there.
            before, after = [], list(tf_internals_emission.in_topological_order(graph, needed))
        else:
            # What does not depend on the batch is not to wait for it: where data ends, plain
            # TensorFlow has counted one update more.
            before, after = tf_internals_emission.independent_of(graph, of_batch, needed)
        first = GraphRun(partitioner, graph, [*[Value(t) for t in rows.tensors], *captured])
        first.emit(before)
        kinds = partitioner.counters.uncounted(after) if partitioner.counters else []
        # What XLA compiles can't call a kernel in a function.
        partitioner.shares_draws = bool(kinds) and self._compiled is None
        unshared = unshared_draws(after) if partitioner.shares_draws else kinds

        def emit(child: Partitioner, values: Sequence[Value]) -> list[tf.Tensor]:
            run = first.within(child, list(zip(of_batch, values, strict=True)))
            run.emit(after)
            return child.wholes(run.outputs()) or [tf.constant(0)]

        def split() -> list[tf.Tensor]:
            return emit(partitioner.child(), rows.split())

        def whole() -> list[tf.Tensor]:
            given = rows.whole_tensors()
            if unshared:
                self._tell_draws(unshared)
            if partitioner.shares_draws:
                return emit(partitioner.of_whole_batch(), [Value(tensor) for tensor in given])
            of_whole = {tensor.ref(): t for tensor, t in zip(of_batch, given, strict=True)}
            found = first.tensors() | of_whole
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

    def _tell_draws(self, kinds: Sequence[str]) -> None:
        """Lets a line say, when such a batch comes, that draws differ from those of one process."""
        told = functools.cache(lambda: self._say_draws(", ".join(kinds)))

        def tell() -> Array:
            told()
            return np.zeros((), np.int32)

        with tf.device("/cpu:0"):
            tf.numpy_function(tell, [], tf.int32, stateful=True)

    def _say_draws(self, kinds: str) -> None:
        if self._session.world.rank == 0:
            print(
                "syrtos: a batch has fewer rows than there are workers, or tensors of unequal rows,"
                f" and what XLA compiles of this step draws by {kinds} of TensorFlow's: from here on"
                " these are not the numbers of one process. Leave such batches out"
                " (`drop_remainder=True`), draw by `keras.random`, or do without"
                " `jit_compile=True`.",
                file=sys.stderr,
                flush=True,
            )

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
