"""An Estimator's graph as a program of all workers: runs of its session are partitioned.

``model_fn`` builds the graph of whole batches, as in one process. What a run of the session fetches
is emitted into the same graph once more, for this worker's rows, by the rules of
`syrtos.keras.tensorflow.partition`; what the batch has no part in is run as it is. A batch that
can't be split is computed whole by every worker, by the operations of ``model_fn`` themselves.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
import tensorflow as tf

from syrtos.comm.world import Session
from syrtos.errors import SyrtosError
from syrtos.keras import fitting
from syrtos.keras.datasets.checksums import checksum_of, is_compared
from syrtos.keras.split import verdicts
from syrtos.keras.split.described_errors import describe_error
from syrtos.keras.tensorflow import tf_internals_emission, tf_internals_graphs
from syrtos.keras.tensorflow.partition.batch_rows import rows_among
from syrtos.keras.tensorflow.partition.exchanges import WorkerExchanges
from syrtos.keras.tensorflow.partition.partitioner import GraphRun, Partitioner
from syrtos.keras.tensorflow.partition.report import Report
from syrtos.keras.tensorflow.partition.rules.lists import MAKING
from syrtos.keras.tensorflow.partition.step import FEW_ROWS, why_whole

if TYPE_CHECKING:
    from syrtos.keras.tensorflow.tf_internals_emission import TracedGraph
    from syrtos_estimator.protocols import Feed, GraphSession

v1 = tf.compat.v1

# Conditions and loops of TensorFlow 1 before `tf.cond` and `tf.while_loop` became functions.
_OLD_CONTROL_FLOW = frozenset(
    ("Enter", "Exit", "LoopCond", "Merge", "NextIteration", "RefEnter", "RefMerge", "RefSwitch")
) | {"Switch"}
# What the workers call together; an error names it where a worker runs a session alone.
_RUN = (
    "session.run of what depends on the batch (a hook that rank 0 alone has can ask for it in"
    " `before_run` only)"
)
_FEW_ROWS_DRAW = (
    "a batch has fewer rows than there are workers; random draws in such batches, and after them,"
    " are not those of one process"
)
# Operations that draw random numbers from a state of their own.
_DRAWS = frozenset(
    ("Multinomial", "RandomGamma", "RandomPoissonV2", "RandomShuffle", "RandomStandardNormal")
) | {"RandomUniform", "RandomUniformInt", "TruncatedNormal", "ParameterizedTruncatedNormal"}
# What a session can fetch: a tensor, an operation, or the name of one.
Element = Any


class _NotDivisibleError(Exception):
    """An operation can't be emitted a second time; the message says which."""


@dataclasses.dataclass
class _BatchInputs:
    """The inputs of a graph: all that `GraphRun` asks a graph for whose operations it is given."""

    inputs: list[tf.Tensor]
    outputs: Sequence[tf.Tensor] = ()


class PartitionedGraph:
    """The graph of a ``model_fn``, whose runs all workers make together.

    Attributes:
        count: int32 scalar, the number of this worker's rows of a batch.
        failure: why batches are computed whole; empty if they are not.
        report: counts of what was emitted.
    """

    def __init__(
        self,
        workers: Session,
        batch: object,
        sources: Sequence[tf.Tensor],
        gradients: Mapping[Any, object],
        expected: Sequence[Element],
        what: str,
    ) -> None:
        """
        Args:
            workers: all of the run.
            batch: the structure of a whole batch's tensors, which can be fed.
            sources: the tensors that take the next batch from the data, in the order of the leaves.
            gradients: the variables of gradients, as `GradientTerms` has them.
            expected: the tensors and operations that each step fetches.
            what: describes the graph, for messages.
        """
        self.failure = ""
        self._workers, self._gradients, self._what = workers, gradients, what
        self._expected, self._sources = expected, sources
        self._graph = v1.get_default_graph()
        self.report, self._runs, self._has_told = Report(), 0, False
        with tf_internals_graphs.adding_to_final(self._graph):
            self._rows = rows_among(batch, workers)
            self.count = tf.convert_to_tensor(self._rows.share.count, tf.int32)
        self._leaves = tensors_of(batch)
        self._references = {leaf.ref() for leaf in self._leaves}
        self._depends: dict[tf.Operation, bool] = {}
        # Conditions and loops in which the workers exchange.
        self._exchanging = 0
        self._elements: dict[Element, Element] = {}
        # What runs the operations of `model_fn` themselves.
        self.run_whole: Callable[..., Any] = _not_installed
        self._program: GraphRun | None = None
        self._partitioner: Partitioner | None = None

    def prepare(self) -> None:
        """Emits what is known to be fetched, before there is a session.

        Operations that a session has run already are not to be changed.
        """
        if not self.why_always_whole():
            merged = [op for op in self._graph.get_operations() if op.type == "MergeSummary"]
            # One after the other: an exchange waits for those before it, fetched or not.
            for elements in (self._expected, [op.outputs[0] for op in merged]):
                self._emit_all([one for one in elements if self._is_dependent(one)])

    def install(self, session: GraphSession) -> GraphSession:
        """Makes the runs of a session partitioned, and returns it."""
        self.run_whole = session.run
        setattr(session, "run", functools.partial(self.run, session.run))  # noqa: B010 - a protocol's method
        return session

    def run(
        self,
        original: Callable[..., Any],
        fetches: object,
        feed_dict: Feed | None = None,
        options: object = None,
        run_metadata: object = None,
    ) -> Any:
        """Runs a session as `tf.compat.v1.Session.run` does. All workers call this together.

        Where what is fetched depends on the batch, the next one is taken from the data first.

        Raises:
            tf.errors.OutOfRangeError: the data has ended.
            DataError: the workers have read unequal batches.
        """
        call = functools.partial(original, options=options, run_metadata=run_metadata)
        found: list[Element] = []
        try:
            _map_fetches(fetches, lambda one: found.append(self._graph_element(one)))
        except (KeyError, TypeError, ValueError):
            return call(fetches, feed_dict)  # the session says what is wrong with them
        asked = [one for one in found if self._is_dependent(one)]
        if not asked:
            return call(fetches, feed_dict)
        given = feed_dict or {}
        others = self._asked_by_all(asked)
        try:
            arrays = self.next_batch(given)
        except tf.errors.OutOfRangeError:
            # As in one process, what does not wait for the batch may run once more.
            return call(fetches, feed_dict)
        self._compare(list(arrays.values()))
        feed = {**arrays, **given}
        if self._tell(self.why_whole(arrays)) or not self._emit_all([*asked, *others]):
            return call(fetches, feed)

        def to_fetch(one: Element) -> Element:
            element = self._graph_element(one)
            return self._elements[element] if self._is_dependent(element) else one

        both = [_map_fetches(fetches, to_fetch), [self._elements[one] for one in others]]
        return call(both, feed)[0]

    def _compare(self, arrays: Sequence[Any]) -> None:
        """Compares some batches over the workers."""
        number, self._runs = self._runs, self._runs + 1
        if is_compared(number):
            mine = checksum_of([np.asarray(array) for array in arrays])
            fitting.check_same_data(self._workers.comm.agree("compare input", mine), number)

    def _asked_by_all(self, asked: Sequence[Element]) -> list[Element]:
        """Returns what other workers' hooks fetch in the same run, e.g. rank 0's summaries."""
        names = sorted({one.name for one in asked})
        mine = float(zlib.crc32("\n".join(names).encode()))
        comm = self._workers.comm
        if len(set(comm.agree(_RUN, mine))) == 1:
            return []
        known = {name for each in comm.allgather_object(names) for name in each} - set(names)
        found = []
        for name in sorted(known):
            try:
                found.append(self._graph.as_graph_element(name))
            except (KeyError, ValueError) as error:
                raise SyrtosError(
                    f"Another worker's hook fetches `{name}`, which this worker's graph lacks: the"
                    " workers have built unequal graphs. Build the same graph on all of them; which"
                    " worker writes files, hooks may decide."
                ) from error
        return found

    def next_batch(self, feed: Feed) -> dict[object, Any]:
        """Takes the next batch from the data; returns what a run is to be fed with."""
        return dict(zip(self._leaves, self.run_whole(self._sources, feed), strict=True))

    def why_always_whole(self) -> str:
        """Returns why no batch can be split; empty where one can."""
        return self.failure or why_whole(self._rows, False)

    def why_whole(self, arrays: Mapping[Any, Any]) -> str:
        """Returns why every worker computes a batch whole; empty where it is split."""
        if why := self.why_always_whole():
            return why
        dense = [arrays[self._leaves[i]] for i in self._rows.dense]
        counts = {len(array) for array in dense}
        if len(counts) > 1:
            return "its tensors have unequal numbers of rows"
        return FEW_ROWS if counts.pop() < self._workers.comm.size else ""

    def _tell(self, why: str) -> bool:
        """Says once why a batch is computed whole; returns whether it is."""
        told = why
        # The last batch of many an epoch has few rows.
        if why == FEW_ROWS:
            told = _FEW_ROWS_DRAW if self._draws() else ""
        if told and not self._has_told:
            self._has_told = True
            verdicts.tell(told, self._workers, self._what)
        return bool(why)

    def _draws(self) -> bool:
        """Returns whether a random operation with a state depends on the batch."""
        return any(
            depends and op.type in _DRAWS and op.op_def.is_stateful
            for op, depends in self._depends.items()
        )

    # -- what is fetched ---------------------------------------------------------------------------

    def _graph_element(self, one: Element) -> Element:
        """Returns the tensor or operation that a session would fetch."""
        return self._graph.as_graph_element(one)

    def _is_dependent(self, one: Element) -> bool:
        """Returns whether something fetched depends on the batch, and is no part of it."""
        if isinstance(one, tf.Tensor):
            return not self._is_leaf(one) and self._op_depends(one.op)
        return self._op_depends(one)

    def _op_depends(self, op: tf.Operation) -> bool:
        if op not in self._depends:
            # In the order in which they were added: after what they take.
            for one in self._graph.get_operations()[len(self._depends) :]:
                before = [*(tensor.op for tensor in one.inputs), *one.control_inputs]
                self._depends[one] = not one.name.startswith(tf_internals_graphs.ADDED) and (
                    any(self._is_leaf(tensor) for tensor in one.inputs)
                    # Loops of TensorFlow 1 are circles.
                    or any(self._depends.get(other, False) for other in before)
                )
        return self._depends[op]

    def _is_leaf(self, tensor: tf.Tensor) -> bool:
        return tensor.ref() in self._references

    # -- emission ----------------------------------------------------------------------------------

    def _emit_all(self, elements: Sequence[Element]) -> bool:
        """Emits what elements need; returns False where that can't be done."""
        missing = [one for one in elements if one not in self._elements]
        if not missing:
            return True
        try:
            with tf_internals_graphs.adding_to_final(self._graph):
                self._emit(missing)
        except SyrtosError:
            raise
        except _NotDivisibleError as error:
            self.failure = f"its graph can't be divided: {error}"
        # Any error of a rule, or of TensorFlow in one: what is not understood is computed whole.
        except Exception as error:
            self.failure = f"its graph can't be divided: {describe_error(error)}"
        if self.failure:
            return not self._tell(self.failure)
        if whole := self.report.describe_whole():
            self._workers.ledger.say(computed_whole=whole)
        return True

    def _emit(self, elements: Sequence[Element]) -> None:
        rows = self._rows
        if self._program is None or self._partitioner is None:
            exchanges = WorkerExchanges(self._workers, rows.share)
            self._partitioner = Partitioner(rows.share, exchanges, self.report, self._gradients)
            self._program = GraphRun(
                self._partitioner, cast("TracedGraph", _BatchInputs(self._leaves)), rows.split()
            )
        program = self._program
        operations = self._needed(
            [one.op if isinstance(one, tf.Tensor) else one for one in elements]
        )
        if old := {op.type for op in operations} & _OLD_CONTROL_FLOW:
            raise _NotDivisibleError(f"it has conditions or loops of TensorFlow 1 ({min(old)})")
        made = set(operations)
        for op in operations:
            program.give([tensor for tensor in op.inputs if tensor.op not in made])
        before = len(self._graph.get_operations())
        program.emit(operations)
        added = self._graph.get_operations()[before:]
        self._exchanging += sum(
            op.type not in tf_internals_emission.CALLS and tf_internals_emission.calls_exchange(op)
            for op in added
        )
        # Nothing orders several of them in a graph of TensorFlow 1.
        if self._exchanging > 1:
            raise _NotDivisibleError("the workers would exchange in several conditions or loops")
        tensors = [one for one in elements if isinstance(one, tf.Tensor)]
        wholes = self._partitioner.wholes([program.value_of(tensor) for tensor in tensors])
        self._elements.update(zip(tensors, wholes, strict=True))
        for op in elements:
            if isinstance(op, tf.Operation):
                self._elements[op] = tf.group(*program.operations_of(op))

    def _needed(self, roots: Sequence[tf.Operation]) -> list[tf.Operation]:
        """Returns operations not yet emitted that depend on the batch, in topological order."""
        assert self._program is not None
        found: list[tf.Operation] = []
        done: set[tf.Operation] = set()
        for root in roots:
            stack = [(root, False)]
            while stack:
                op, is_ready = stack.pop()
                if is_ready:
                    found.append(op)
                elif op not in done and self._is_missing(op):
                    done.add(op)
                    stack.append((op, True))
                    inputs = [t.op for t in op.inputs if not self._is_leaf(t)]
                    stack += [(other, False) for other in (*inputs, *op.control_inputs)]
        return found

    def _is_missing(self, op: tf.Operation) -> bool:
        assert self._program is not None
        # A list is to know what its elements are.
        is_needed = self._op_depends(op) or op.type in MAKING
        return is_needed and not self._program.was_emitted(op)


def tensors_of(batch: object) -> list[tf.Tensor]:
    """Returns the tensors of a batch, those of sparse and ragged ones among them."""
    flat = tf.nest.flatten(batch, expand_composites=True)
    return [leaf for leaf in flat if isinstance(leaf, tf.Tensor)]


def _not_installed(*_args: object) -> NoReturn:
    raise RuntimeError("the graph has no session yet")


def _map_fetches(fetches: Any, change: Callable[[Element], Element]) -> Any:
    """Returns what a session is to fetch, with other elements."""
    if isinstance(fetches, dict):
        return type(fetches)((key, _map_fetches(value, change)) for key, value in fetches.items())
    if isinstance(fetches, list | tuple):
        changed = [_map_fetches(value, change) for value in fetches]
        return type(fetches)(*changed) if hasattr(fetches, "_fields") else type(fetches)(changed)
    if fetches is None:
        return None
    if isinstance(fetches, tf.IndexedSlices | tf.SparseTensor | tf.RaggedTensor):
        parts = tf.nest.flatten(fetches, expand_composites=True)
        changed = [change(part) for part in parts]
        return tf.nest.pack_sequence_as(fetches, changed, expand_composites=True)
    return change(fetches)
