"""The first batches of a graph: whether its steps on shares compute what one process computes.

A graph is built once, for a worker's share. What comes into it from outside can be fed, though:
rows, their number, random numbers. Where rank 0 is fed the rows of all workers, and the others rows
that do not count, it computes what one process computes. So does a step that can't be split.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from syrtos.comm.communicator import ReduceOp
from syrtos.comm.world import Session
from syrtos.dialects.estimator import hooks
from syrtos.dialects.estimator.graphs import GraphScope
from syrtos.keras.split import comparison, first_batch, trial_step, verdicts
from syrtos.keras.split.checks import Checks
from syrtos.keras.split.plan import SplitPlan
from syrtos.keras.split.trial_step import Assigned, StepOutcome
from syrtos.keras.tensorflow import input as pipelines
from syrtos.keras.tensorflow import tf_internals_graphs

if TYPE_CHECKING:
    from tensorflow.core.protobuf.config_pb2 import ConfigProto

    from syrtos.dialects.estimator.protocols import Feed, GraphSession, RunContext
    from syrtos.keras.tensorflow.types import BatchLeaf, Gradient

v1 = tf.compat.v1

# Operations whose results are random, by the beginnings of their types' names; each has the result
# as its first output.
_DRAWS = tuple(
    state + kind
    for state in ("", "Stateless", "Stateful", "Parameterized", "StatelessParameterized")
    for kind in ("Random", "TruncatedNormal", "Multinomial", "Uniform", "Standard")
)
_MOST_ELEMENTS = (
    1_000_000  # of a sparse gradient, or of a variable that is not trained, that is compared
)
_COMPUTES = "Rank 0 computes"  # the whole batch
_NOT_TRIED = "it could not be tried"
Known = tuple[SplitPlan, Checks]


class NeedsStaticRows(Exception):
    """A ``model_fn`` can't be built for batches of any number of rows."""


class _Draw(NamedTuple):
    """A random tensor of a graph."""

    tensor: tf.Tensor
    shape: tf.Tensor
    largest: tf.Tensor


def has_static_rows(data: object) -> bool:
    """Returns whether a batch's tensors have a static number of rows: no other can be fed."""
    return any(
        leaf.shape.rank and leaf.shape[0] is not None
        for leaf in _with_rows(data)
        if isinstance(leaf, tf.Tensor)
    )


def of_any_rows(data: object) -> object:
    """Returns the same batch, whose tensors may be fed with any number of rows."""

    def forget_row_count(leaf: object) -> object:
        if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
            return leaf
        return v1.placeholder_with_default(leaf, [None, *leaf.shape[1:]])

    return tf.nest.map_structure(forget_row_count, data)


def _with_rows(data: object) -> list[BatchLeaf]:
    return [leaf for leaf in tf.nest.flatten(data) if pipelines.has_rows(leaf)]


class Comparing(v1.train.SessionRunHook):
    """Computes some steps both split and as in one process, before they count.

    These computations have their own session. Steps that can't be split are fed with all rows.
    """

    def __init__(
        self,
        scope: GraphScope,
        known: Known,
        kind: str,
        loss: tf.Tensor,
        train_op: tf.Operation | None = None,
        metrics: Mapping[str, tuple[object, object]] | None = None,
        config: ConfigProto | None = None,
    ) -> None:
        """
        Args:
            scope: the step, whose graph is being built; its data can be fed with any number of
                rows.
            known: what earlier graphs of the same function have shown, and when they were compared.
            kind: ``train_step`` or ``test_step``.
            loss: the loss of all workers' rows, as `graphs.loss_of_all` makes it.
            train_op: the training operation.
            metrics: the value and the update of each metric.
            config: of sessions.
        """
        self.plan, self.checks = known
        self._scope, self._kind = scope, kind
        self._what = f"`model_fn` in mode {'train' if kind == 'train_step' else 'eval'!r}"
        self._loss, self._train_op, self._metrics, self._config = (
            loss,
            train_op,
            dict(metrics or {}),
            config,
        )
        self._samples: object = scope.samples
        self._trial: _Trial | None = None

    def begin(self) -> None:
        """Makes the operations that comparisons need, before the graph is final."""
        if why := self._why_not():
            self.checks.end()
            tell_once(self._scope.session, f"{self._what} is not compared with one process: {why}.")
            return
        leaves = _with_rows(self._scope.data)
        # These exchanges take place in some steps alone. In the step's own order each run of the
        # graph would make them.
        with tf_internals_graphs.exchanges_of_their_own():
            gathered = self._scope.rows_of_all(leaves)
        # Sparse and ragged tensors are fed part by part.
        self._rows: list[object]
        self._all_rows: list[object]
        self._rows, self._all_rows = (
            tf.nest.flatten(tree, expand_composites=True) for tree in (leaves, gathered)
        )
        if not self.plan.reason_not_split:
            self._trial = _Trial(
                self._scope, self._loss, self._train_op, self._metrics, self._rows, self._config
            )

    def _why_not(self) -> str:
        """Says why steps of this graph can't be compared; empty if they can."""
        options, trains = self._scope.session.options, self._kind == "train_step"
        if options.verify == "off":
            return "`--verify off` was asked for"
        if any(leaf.shape.rank is None for leaf in _with_rows(self._scope.data)):
            return "the rank of a tensor of its batches is not known"
        if trains and options.compress != "none":
            return "its gradients are compressed"
        if trains and _normalizes(v1.get_default_graph()):
            return (
                "its batch normalization uses mean and variance of each worker's share of a batch"
            )
        reduced = {name for name, _ in self._scope.reduced}
        if trains and not any(v.op.name in reduced for v in v1.trainable_variables()):
            return "a branch of a condition, or an optimizer of its own, makes its gradients"
        return ""

    def before_run(self, run_context: RunContext) -> object:
        """Compares what the next step computes, if that is due, and returns the step's feed."""
        feed = self._feed_of_step(run_context.session)
        self.checks.count(1)
        if (
            self._scope.session.options.verify == "only"
            and self.checks.steps >= verdicts.Verifying.CALLS
        ):
            run_context.request_stop()
        return v1.train.SessionRunArgs(None, feed)

    def _feed_of_step(self, session: GraphSession) -> Feed:
        is_due = self.checks.is_due() and self._trial is not None
        if not is_due and not self.plan.reason_not_split:
            return self._feed_of_plan()
        # What a run takes out of the pipeline no later run gets: the step that counts has to be fed
        # with it.
        *own, samples = session.run([*self._rows, self._samples])
        share: dict[object, npt.ArrayLike] = {
            **dict(zip(self._rows, own, strict=True)),
            self._samples: samples,
        }
        batch = self._feed_of_all_rows(session, share)
        if is_due and self._trial is not None:
            self._check(self._trial, session, share, batch)
        return batch if self.plan.reason_not_split else {**share, **self._feed_of_plan()}

    def _feed_of_plan(self) -> dict[object, bool]:
        # Before the first comparison nothing is fed: the graph's own way holds, by the reduction of
        # its losses.
        return self._scope.ways(self.plan) if self.plan.was_compared else {}

    def _feed_of_all_rows(
        self, session: GraphSession, share: Mapping[object, npt.ArrayLike]
    ) -> dict[object, npt.ArrayLike]:
        """Returns what each worker is fed with, so that all rows are rank 0's."""
        comm = self._scope.session.comm
        rows = session.run(self._all_rows, share)
        samples = comm.allreduce(np.asarray([share[self._samples]]), ReduceOp.SUM)[0]
        if comm.rank:
            return {**share, self._samples: np.float32(0.0)}
        return {**dict(zip(self._rows, rows, strict=True)), self._samples: samples}

    def _check(
        self,
        trial: _Trial,
        session: GraphSession,
        share: Mapping[object, npt.ArrayLike],
        batch: Feed,
    ) -> None:
        began, workers, is_first = time.monotonic(), self._scope.session, not self.plan.was_compared
        counts = workers.comm.agree("rows of each worker", float(np.asarray(share[self._samples])))
        # Rows of one worker alone show nothing of how parts combine.
        few = sum(count > 0 for count in counts) < 2
        if not few:
            with trial.on(session, share, batch):
                if trial.is_repeatable():
                    self._compare(trial, is_first)
                else:
                    self.checks.end()
                    tell_once(
                        self._scope.session,
                        f"{self._what} is not compared with one process: it draws random numbers in"
                        " a loop.",
                    )
        self.checks.note_check(workers.comm, time.monotonic() - began, few)
        if self.plan.reason_not_split:
            self.checks.end()

    def _compare(self, trial: _Trial, is_first: bool) -> None:
        workers = self._scope.session
        if is_first:
            first_batch.decide(self.plan, trial, workers)
        elif not first_batch.confirm(self.plan, trial, workers):
            other = self.plan.for_next_comparison()
            first_batch.decide(other, trial, workers)
            self.plan.adopt(other)
            verdicts.tell_change(self.plan, workers, self._what, self.checks.steps + 1, _COMPUTES)
        if self.plan.reason_not_split.startswith(
            _NOT_TRIED
        ):  # as where all rows do not fit into the memory of one worker
            tell_once(
                self._scope.session,
                f"{self._what} is not compared with one process: {self.plan.reason_not_split}.",
            )
            self.plan.reason_not_split = ""
            self.checks.end()
        elif not self.plan.reason_not_split and not _can_follow(self.plan):
            self.plan.reason_not_split = (
                "no sum or mean over the workers makes of their numbers those of the batch"
            )
        if is_first or self.plan.reason_not_split:
            verdicts.tell(self.plan, workers, self._what, _COMPUTES)
        if is_first and workers.options.verify == "only":
            verdicts.Verifying.note(
                self.plan,
                workers,
                "model_fn",
                self._kind,
                comparison.bound_of(trial.precision()),
                _COMPUTES,
            )


def _can_follow(plan: SplitPlan) -> bool:
    """Returns whether a graph can be fed so that it does what the plan says."""
    # Index 0 is the loss. The numbers after it are metrics, which are added up in any case.
    return not plan.variables and plan.logs.get(0, "sum") == "sum"


class _Trial:
    """A step in a session of its own, with the values of the session that trains.

    The step leaves no trace in the session that trains.
    """

    def __init__(
        self,
        scope: GraphScope,
        loss: tf.Tensor,
        train_op: tf.Operation | None,
        metrics: Mapping[str, tuple[object, object]],
        rows: Sequence[object],
        config: ConfigProto | None,
    ) -> None:
        self._scope, self._graph, self._config = scope, v1.get_default_graph(), config
        self._variables = hooks.GraphVariables(v1.global_variables())
        self._totals = hooks.metric_totals()
        self._begin = v1.local_variables_initializer()
        # Not the iterators: all data of a trial is fed.
        self._tables = [
            op
            for op in v1.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)
            if op.type != "MakeIterator"
        ]
        self._updates = tf.group(*(update for _, update in metrics.values()))
        self._gradients = [(name, _dense(gradient)) for name, gradient in scope.reduced]
        self._numbers: dict[str, object] = {
            "loss": loss,
            **{name: value for name, (value, _) in metrics.items()},
        }
        self._state = [] if train_op is None else _assigned_by_script(v1.global_variables())
        self._train_op = train_op if self._state else tf.no_op()
        fetched = [
            *(g for _, g in self._gradients),
            *self._numbers.values(),
            self._updates,
            self._train_op,
        ]
        self._forward = _ancestors(fetched, {id(leaf) for leaf in rows})
        self._draws = _draws(self._forward)

    @contextlib.contextmanager
    def on(self, session: GraphSession, share: Feed, batch: Feed) -> Iterator[None]:
        """Context manager: the trial has the values of a session that trains, and a batch.

        The batch is given twice: this worker's share of it, and all of it.
        """
        # The rounding of TensorFloat-32 differs by the number of rows.
        tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        tf.config.experimental.enable_tensor_float_32_execution(False)
        # Not the session that trains, in which a trial would leave traces.
        self._session = v1.Session(graph=self._graph, config=self._config)
        try:
            self._session.run(self._tables)
            self._values, self._share, self._batch = self._variables.read(session), share, batch
            self._reset()
            # Every draw gets the largest number of one real draw: the same on all workers, for
            # whatever number of rows.
            largest = self._session.run([draw.largest for draw in self._draws], share)
            self._largest = self._scope.session.comm.broadcast_object(largest)
            yield
        finally:
            self._session.close()
            tf.config.experimental.enable_tensor_float_32_execution(tf32)

    def is_repeatable(self) -> bool:
        """Returns whether a step computes the same twice.

        Draws in loops and conditions are not switched off.
        """
        comm = self._scope.session.comm
        one, other = (self.compute_split(SplitPlan()) for _ in range(2))
        if one.error or other.error:
            return True  # the comparison says more
        return not comparison.compare_outcomes(comm, one, other, 1e-6, SplitPlan())[0]

    # -- as `StepTrial` says ---------------------------------------------------------------------

    left_out = ""

    def compute_as_one_process(self, all_rows: bool) -> StepOutcome:
        del all_rows  # they always are
        return self._outcome(self._batch, {}, is_whole=True)

    def compute_split(self, plan: SplitPlan) -> StepOutcome:
        return self._outcome(self._share, self._scope.ways(plan))

    def with_more_rows(self) -> None:
        return None

    def has_all_rows(self) -> bool:
        return True

    def backwards(self) -> Self:
        # The order of rows shows a maximum, which is not among the ways to combine numbers here.
        return self

    def zeros_raised(self) -> contextlib.nullcontext[list[str]]:
        # Nothing assigns such a variable between the steps of an Estimator's graph.
        return contextlib.nullcontext([])

    def precision(self) -> int:
        sizes = [
            t.dtype.size
            for operation in self._forward
            for t in operation.outputs
            if t.dtype.is_floating
        ]
        return 2 if 2 in sizes else 4

    # -- helpers ---------------------------------------------------------------------------------

    def _outcome(self, rows: Feed, ways: Feed, is_whole: bool = False) -> StepOutcome:
        try:
            return self._run({**rows, **ways}, is_whole)
        except Exception as error:
            return StepOutcome(error=trial_step.describe_error(error))

    def _run(self, feed: dict[object, object], is_whole: bool) -> StepOutcome:
        session = self._session
        self._reset()
        shapes = session.run([draw.shape for draw in self._draws], feed)
        for draw, shape, largest in zip(self._draws, shapes, self._largest, strict=True):
            tensor: object = draw.tensor
            feed[tensor] = np.full(shape, largest)
        totals = self._totals.read(session)
        fetched = [
            [g for _, g in self._gradients],
            self._numbers["loss"],
            self._scope.own_loss,
            self._updates,
        ]
        gradients, loss, own_loss, _ = session.run(fetched, feed)
        # A row that does not count has been counted by the metrics' updates all the same.
        samples: object = self._scope.samples
        if not feed[samples]:
            self._totals.write(session, totals)
        self._totals.reduce(session, self._scope.session.comm, ReduceOp.SUM)
        metrics = session.run([value for name, value in self._numbers.items() if name != "loss"])
        nothing = np.zeros(0)  # of no shape that a rule could be found for
        return StepOutcome(
            gradients=gradients,
            gradient_names=[name for name, _ in self._gradients],
            logs=[loss, *metrics],
            log_names=list(self._numbers),
            own_logs=[own_loss, *(nothing for _ in metrics)],
            assigned=self._run_train_op(feed, is_whole),
        )

    def _run_train_op(self, feed: Feed, is_whole: bool) -> dict[int, Assigned]:
        """Runs the training operation, and returns what it has assigned.

        Weights and their optimizer's state are left out.
        """
        if not self._state:
            return {}
        before = self._session.run(self._state)
        self._session.run(self._train_op, feed)
        after = self._session.run(self._state)
        # The other workers have a row that does not count.
        if is_whole:
            after = [self._scope.session.comm.broadcast(np.asarray(value)) for value in after]
        return {
            id(v): Assigned(v.op.name, b, a)
            for v, b, a in zip(self._state, before, after, strict=True)
        }

    def _reset(self) -> None:
        self._session.run(self._begin)
        self._variables.write(self._session, self._values)


def _dense(gradient: Gradient) -> tf.Tensor:
    """Returns a gradient as one tensor; the sum of its values if a sparse one would be large."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    shape = tf.get_static_value(gradient.dense_shape) if gradient.dense_shape is not None else None
    if shape is None or np.prod(shape) > _MOST_ELEMENTS:
        return tf.reduce_sum(gradient.values, axis=0)
    return tf.convert_to_tensor(gradient)


def _assigned_by_script(variables: Sequence[tf.Variable]) -> list[tf.Variable]:
    """Returns the variables that a script may assign by itself.

    Variables of optimizers and moving statistics are left out.
    """
    trained = [v.op.name for v in v1.trainable_variables()]

    def is_other(variable: tf.Variable) -> bool:
        name = variable.op.name
        # Optimizers name their slots after the variables: `dense/kernel/Adam`.
        ours = name in trained or any(f"/{one}/" in f"/{name}" for one in trained)
        return not (
            ours
            or hooks.is_moving(name)
            or name.endswith(("_power", "global_step", "seed_generator_state"))
        )

    return [
        v
        for v in variables
        if is_other(v) and (v.shape.num_elements() or _MOST_ELEMENTS) < _MOST_ELEMENTS
    ]


def _ancestors(fetched: Sequence[tf.Operation | tf.Tensor], fed: set[int]) -> list[tf.Operation]:
    """Returns the operations that fetched tensors and operations need if some tensors are fed."""
    waiting = [one if isinstance(one, tf.Operation) else one.op for one in fetched]
    found: dict[int, tf.Operation] = {}
    while waiting:
        operation = waiting.pop()
        if id(operation) not in found:
            found[id(operation)] = operation
            inputs = [tensor.op for tensor in operation.inputs if id(tensor) not in fed]
            waiting += [*inputs, *operation.control_inputs]
    return list(found.values())


def _draws(operations: Sequence[tf.Operation]) -> list[_Draw]:
    """Returns random tensors among operations' results, with their shapes and largest elements."""
    found: list[_Draw] = []
    for operation in operations:
        if not operation.type.startswith(_DRAWS):
            continue
        tensor = operation.outputs[0]
        if tensor.dtype.is_floating or tensor.dtype.is_integer:
            # Nothing outside of a loop of TensorFlow 1 can use the tensors in it.
            with contextlib.suppress(ValueError):
                found.append(_Draw(tensor, tf.shape(tensor), tf.reduce_max(tensor)))
    return found


def _normalizes(graph: tf.Graph) -> bool:
    """Returns whether a training step normalizes by statistics of its own rows."""
    fused = [
        operation
        for operation in graph.get_operations()
        if operation.type.startswith("FusedBatchNorm")
    ]
    if fused:
        return any("Grad" not in one.type and one.get_attr("is_training") for one in fused)
    names = [v.op.name for v in v1.global_variables()]
    return any(name.endswith(("moving_mean", "moving_variance")) for name in names)


def tell_once(session: Session, text: str) -> None:
    """Says why steps are not compared; the record of the run has it too."""
    if session.world.rank == 0 and session.ledger.told.get("not_compared") != text:
        print(f"syrtos: {text}", file=sys.stderr)
    session.ledger.say(not_compared=text)
