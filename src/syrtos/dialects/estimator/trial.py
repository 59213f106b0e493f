"""A step of a graph, computed both split and as in one process, in a session of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import tensorflow as tf

from syrtos.comm.communicator import ReduceOp
from syrtos.dialects.estimator import hooks
from syrtos.dialects.estimator.graphs import GraphScope
from syrtos.dialects.estimator.outcomes import Assigned, StepOutcome, compare_outcomes
from syrtos.dialects.estimator.plan import SplitPlan
from syrtos.keras.split.described_errors import describe_error

if TYPE_CHECKING:
    from tensorflow.core.protobuf.config_pb2 import ConfigProto

    from syrtos.dialects.estimator.protocols import Feed, GraphSession
    from syrtos.keras.tensorflow.types import Gradient

v1 = tf.compat.v1

# Operations whose results are random, by the beginnings of their types' names; each has the result
# as its first output.
_DRAWS = tuple(
    state + kind
    for state in ("", "Stateless", "Stateful", "Parameterized", "StatelessParameterized")
    for kind in ("Random", "TruncatedNormal", "Multinomial", "Uniform", "Standard")
)
# Of a sparse gradient, or of a variable that is not trained, that is compared.
_MOST_ELEMENTS = 1_000_000


class _Draw(NamedTuple):
    """A random tensor of a graph."""

    tensor: tf.Tensor
    shape: tf.Tensor
    largest: tf.Tensor


class GraphTrial:
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
        return not compare_outcomes(comm, one, other, 1e-6, SplitPlan())[0]

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
            return StepOutcome(error=describe_error(error))

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
