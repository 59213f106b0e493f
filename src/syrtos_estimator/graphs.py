"""The parts of an Estimator's graph, and the runs of its sessions."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError
from syrtos.keras.split import noted_gradients
from syrtos.keras.tensorflow import ops, reduction, tf_internals
from syrtos.keras.tensorflow.assignments import as_one_process
from syrtos.keras.tensorflow.gradients import times
from syrtos.keras.tensorflow.partition.batch_rows import with_tensors
from syrtos.keras.tensorflow.partition.step import GradientTerms
from syrtos.keras.tensorflow.step import TensorFlowStep
from syrtos.observe.clock import Phase
from syrtos.observe.ledger import Ledger
from syrtos_estimator import hooks
from syrtos_estimator.partitioned import PartitionedGraph, tensors_of
from syrtos_estimator.specs import EstimatorSpec, ModeKeys
from syrtos_estimator.verifying import VerifyFirstStep

if TYPE_CHECKING:
    import numpy.typing as npt

    from syrtos.keras.tensorflow.types import Gradient
    from syrtos_estimator.protocols import GraphSession, MetricOfKeras2, MonitoredSession

v1 = tf.compat.v1


class GraphScope(TensorFlowStep):
    """A step on a worker's own batch, in a graph that is ordered by its edges alone.

    Assigned values are made equal outside of it.
    """

    def before_exchange(self, gradients: list[Gradient | None]) -> list[Gradient | None]:
        """Undoes the weights of the mean by samples, where losses are sums."""
        if not tf_internals.losses_are_sums(self._graph):
            return gradients
        factor = 1.0 / self.fraction()
        return [None if g is None else times(g, tf.cast(factor, g.dtype)) for g in gradients]

    def before_assign(self, variable: tf.Variable) -> None:
        """Does nothing: an assignment is not noted."""

    def before_read(self, variable: tf.Variable) -> None:
        """Does nothing: a value that is read is this worker's."""


@dataclasses.dataclass
class BuiltStep:
    """A graph in which ``model_fn`` has built a training or evaluation step.

    Attributes:
        spec: what ``model_fn`` has returned.
        loss: scalar, the loss of the whole batch.
        operation: makes the update, or those of the metrics.
        metrics: the value and the update of each metric.
        samples: the number of this worker's samples.
        active: Boolean scalar, whether this worker has any.
        partition: makes the runs of sessions partitioned; None where each worker has batches of
            its own.
        notes: the gradients of optimizers, in a partitioned step.
    """

    spec: EstimatorSpec
    loss: tf.Tensor
    operation: tf.Operation
    metrics: Mapping[str, tuple[object, object]]
    samples: tf.Tensor
    active: tf.Tensor
    partition: PartitionedGraph | None = None
    notes: GradientTerms | None = None

    def verifying(self, step: str) -> list[VerifyFirstStep]:
        """Returns the hook of `syrtos verify`, if that is what runs."""
        workers = world.current()
        if not workers.options.verifies or self.partition is None or self.notes is None:
            return []
        return [
            VerifyFirstStep(workers, self.partition, self.notes, self.loss, self.operation, step)
        ]


def build_partitioned(
    workers: Session, batch: tuple[object, object], build: Callable[..., EstimatorSpec], mode: str
) -> BuiltStep:
    """Builds a step of whole batches, whose runs all workers make together.

    Args:
        workers: all of the run.
        batch: features and labels.
        build: returns the spec for features and labels.
        mode: one of `ModeKeys`.
    """
    notes = GradientTerms(workers)
    sources = tensors_of(batch)
    batch = of_placeholders(batch)
    with (
        as_one_process(),
        noted_gradients.noting_gradients(notes.note, updates=True),
        tf_internals.assignments_of_keras() as assigned,
    ):
        spec = build(*batch)
        is_training = mode == ModeKeys.TRAIN
        metrics = {} if is_training else metrics_of(spec)
    loss = scalar_loss(spec.loss)
    done = _step_operation(spec, metrics, assigned if is_training else [], is_training)
    what = f"`model_fn` in mode {mode!r}"
    partition = PartitionedGraph(workers, batch, sources, notes.variables, [loss, done], what)
    active = tf.constant(True)
    return BuiltStep(spec, loss, done, metrics, partition.count, active, partition, notes)


def of_placeholders(batch: Any) -> Any:
    """Returns a batch whose tensors can be fed.

    TensorFlow may look past other fed tensors for what they are made of, and so take a further
    batch from the data.
    """
    fed = [v1.placeholder_with_default(tensor, tensor.shape) for tensor in tensors_of(batch)]
    return with_tensors(batch, tf.nest.flatten(batch, expand_composites=True), fed)


def build_on_own(
    workers: Session, batch: object, build: Callable[..., EstimatorSpec], mode: str
) -> BuiltStep:
    """Builds a step on a worker's own batches, whose gradients are averaged by samples.

    Args and result are those of `build_partitioned`.
    """
    is_training = mode == ModeKeys.TRAIN
    with GraphScope(workers, batch, training=is_training).as_current_step() as scope:
        with (
            reduction.counting_reductions() as reductions,
            tf_internals.assignments_of_keras() as assigned,
        ):
            spec = build(*scope.data)
        if is_training:
            check_reduced(len(reductions))
        metrics = {} if is_training else metrics_of(spec)
        loss = loss_of_all(scope, spec.loss)
        done = _step_operation(spec, metrics, assigned if is_training else [], is_training)
    return BuiltStep(spec, loss, done, metrics, scope.samples, scope.active)


def _step_operation(
    spec: EstimatorSpec,
    metrics: Mapping[str, tuple[object, object]],
    assigned: Sequence[tf.Operation],
    is_training: bool,
) -> tf.Operation:
    if is_training:
        return tf.group(operation(spec.train_op), *assigned)
    return tf.group(*(update for _, update in metrics.values()))


def loss_of_all(scope: GraphScope, loss: tf.Tensor | None) -> tf.Tensor:
    """Returns the loss of all workers' batches, from that of this worker's.

    It is the mean of the workers' losses weighted by their samples, or their sum if losses are
    sums.
    """
    loss = scalar_loss(loss)
    if scope.session.comm.size == 1:
        return loss
    share = 1.0 if tf_internals.losses_are_sums(loss.graph) else scope.fraction()
    # By `where`, and not by a factor of 0: the loss of a row that does not count may be infinite.
    mine = tf.where(scope.active, loss * tf.cast(share, loss.dtype), tf.zeros_like(loss))
    return ops.allreduce(scope.session.comm, tf.stop_gradient(mine))


def scalar_loss(loss: tf.Tensor | None) -> tf.Tensor:
    """Returns the loss of an EstimatorSpec as a scalar."""
    assert loss is not None  # an EstimatorSpec for training or evaluation has one
    return tf.reshape(tf.convert_to_tensor(loss), [])


def operation(train_op: object) -> tf.Operation | tf.Tensor:
    """Returns the operation of a training step.

    Raises:
        TypeError: it is none of a graph.
    """
    if isinstance(train_op, tf.Operation | tf.Tensor):
        return train_op
    if isinstance(train_op, tf.Variable):  # what assignments return
        return train_op.op
    raise TypeError(
        f"`train_op` must be an operation of the graph. Received: {type(train_op).__name__}. The"
        " optimizers of Keras 3 make none: use one of tf.compat.v1.train, or"
        " tf_keras.optimizers.legacy with TF_USE_LEGACY_KERAS=1."
    )


@contextlib.contextmanager
def new_graph(phase: Phase | None = None) -> Iterator[tf.Graph]:
    """Context manager: a new graph is the default inside.

    The graph has no strategy, and names as any other graph of the same functions. With a ``phase``
    the ledger counts the time of the block as that part of the run.
    """
    part = world.current().ledger.part(phase, "build") if phase else contextlib.nullcontext()
    with part, tf.Graph().as_default() as graph, tf_internals.names_of_a_new_graph():
        yield graph


@contextlib.contextmanager
def refusing_calls_of_keras() -> Iterator[None]:
    """Context manager: inside, a Keras model's training raises an error that says what to write."""
    # Tensors of a graph that is being built have no values yet, which Keras's own errors don't say.
    kinds = {getattr(sys.modules.get(name), "Model", None) for name in ("keras", "tf_keras")} - {
        None
    }
    calls = ("fit", "train_on_batch", "test_on_batch", "evaluate")
    with contextlib.ExitStack() as stack:
        for kind, call in itertools.product(kinds, calls):
            stack.callback(setattr, kind, call, original := getattr(kind, call))
            setattr(kind, call, _refusing(call, original))
        yield


def _refusing(name: str, original: Callable[..., object]) -> Callable[..., NoReturn]:
    @functools.wraps(original)
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise ConfigurationError(
            f"`model.{name}` was called in a `model_fn`, which builds a graph: its tensors have no"
            " values yet, and nothing would be trained. Either make a `loss` of `model(features,"
            " training=True)` and `labels`, and give the EstimatorSpec"
            " `train_op=tf.compat.v1.train.AdamOptimizer().minimize(loss,"
            " tf.compat.v1.train.get_global_step())`; or let Keras train:"
            " `tf.keras.estimator.model_to_estimator(model)` in place of the Estimator, or"
            " `model.fit`."
        )

    return refuse


def train(session: MonitoredSession, ledger: Ledger, fetches: list[object]) -> None:
    """Runs training steps until the session says stop.

    Args:
        session: a monitored session.
        ledger: counts the steps.
        fetches: the number of this worker's samples, and the training operation.
    """
    done = itertools.count()
    while not session.should_stop():
        ledger.begin_step("train")
        ledger.count(float(session.run(fetches)[0]))
        ledger.end_step(next(done))


def check_reduced(reductions: int) -> None:
    """Checks that the gradients of a training step are exchanged.

    Raises:
        ConfigurationError: each worker would train alone.
    """
    if world.current().world.size > 1 and not reductions and v1.trainable_variables():
        raise ConfigurationError(
            "`model_fn` has built a training step whose gradients are not exchanged: it updates"
            " variables without an optimizer. Use one of tf.compat.v1.train (or a class derived"
            " from its Optimizer), or of tf_keras.optimizers.legacy."
        )


def metrics_of(spec: EstimatorSpec) -> dict[str, tuple[object, object]]:
    """Returns the value and the update of each metric.

    Raises:
        TypeError: a metric makes no operations.
    """
    found: dict[str, tuple[object, object]] = {}
    for name, metric in (spec.eval_metric_ops or {}).items():
        if isinstance(metric, tuple | list):
            found[name] = (metric[0], metric[1])
        elif getattr(metric, "updates", None):
            metric = cast("MetricOfKeras2", metric)  # metrics of Keras 3 have no `updates`
            found[name] = (metric.result(), tf.group(*metric.updates))
            # There `hooks.metric_totals` finds what metrics count in, and each evaluation begins
            # from zero.
            for variable in metric.variables:
                v1.add_to_collection(v1.GraphKeys.LOCAL_VARIABLES, variable)
        else:
            raise TypeError(
                f"The metric {name!r} makes no operations in a graph. Use tf.compat.v1.metrics, or"
                " a metric of tf_keras with TF_USE_LEGACY_KERAS=1."
            )
    return found


def steps_of(
    session: MonitoredSession,
    comm: Communicator,
    fetches: object,
    totals: hooks.GraphVariables | None,
    steps: int | None,
) -> list[float]:
    """Runs steps until the data or ``steps`` end, and returns their losses.

    A worker without samples adds nothing to metrics. ``totals``: what these count in, where each
    worker has batches of its own; else None.

    Raises:
        ValueError: there is no batch.
    """
    losses: list[float] = []
    while not any(comm.agree("stop evaluating?", float(session.should_stop()))) and (
        steps is None or len(losses) < steps
    ):
        before = totals.read(without_hooks(session)) if totals else []
        try:
            loss, active, _ = session.run(fetches)
        except tf.errors.OutOfRangeError:
            break
        losses.append(float(loss))
        if totals and not active:
            totals.write(without_hooks(session), before)
    if not losses:
        raise ValueError("The evaluation's `input_fn` gave no batch.")
    return losses


def without_hooks(session: MonitoredSession) -> GraphSession:
    """Returns the session inside a monitored one."""
    return session.run_step_fn(lambda step_context: step_context.session)


def rows(batch: object) -> Iterator[Any]:
    """Yields the rows of a structure of arrays, each in the same structure."""
    arrays: list[npt.NDArray[Any]] = tf.nest.flatten(batch)
    count = len(arrays[0])
    for row in range(count):
        yield tf.nest.map_structure(lambda values, row=row: values[row], batch)
