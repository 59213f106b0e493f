"""The parts of an Estimator's graph, and the runs of its sessions."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.comm.world import Session
from syrtos.dialects.estimator import hooks
from syrtos.dialects.estimator.plan import SplitPlan
from syrtos.dialects.estimator.specs import EstimatorSpec
from syrtos.errors import ConfigurationError
from syrtos.keras.tensorflow import ops, tf_internals
from syrtos.keras.tensorflow.gradients import times
from syrtos.keras.tensorflow.step import TensorFlowStep
from syrtos.observe.clock import Phase
from syrtos.observe.ledger import Ledger

if TYPE_CHECKING:
    import numpy.typing as npt

    from syrtos.dialects.estimator.protocols import GraphSession, MetricOfKeras2, MonitoredSession
    from syrtos.keras.protocols import FrameworkVariable, NamedVariable
    from syrtos.keras.tensorflow.types import Gradient

v1 = tf.compat.v1


class GraphScope(TensorFlowStep):
    """A step whose graph is ordered by its edges alone: assigned values are made equal outside it.

    Attributes:
        reduced: the gradients after their exchange, with the names of their variables.
        own_loss: the loss of this worker's rows.
    """

    def __init__(self, session: Session, data: object, training: bool) -> None:
        """Makes a step on a `TensorShare` or on a whole batch."""
        super().__init__(session, data, training)
        self.reduced: list[tuple[str, Gradient]] = []
        self.own_loss: tf.Tensor | None = None
        self._ways: dict[str, tf.Tensor] = {}
        self._loss_is_sum = False

    def adds(self, what: Literal["gradients", "loss"]) -> tf.Tensor:
        """Returns a boolean scalar: whether the workers' values are added up. It can be fed.

        Else they become their mean by samples.
        """
        if what not in self._ways:
            # What is not fed has the reduction of the last of `tf.compat.v1.losses`.
            are_sums = tf_internals.losses_are_sums(self._graph)
            # Not in the branch of a condition: a tensor made in one can't be used outside of it.
            with self._graph.as_default(), tf.control_dependencies(None):
                self._ways[what] = v1.placeholder_with_default(are_sums, [])
            self._loss_is_sum = self._loss_is_sum or (what == "loss" and are_sums)
        return self._ways[what]

    def before_exchange(self, gradients: list[Gradient | None]) -> list[Gradient | None]:
        """Undoes the weights of the mean by samples, where losses are sums."""
        # The way can be fed, so both have to be in the graph: a condition in Python would choose
        # one of them for good.
        factor = tf.where(self.adds("gradients"), 1.0 / self.fraction(), 1.0)
        return [None if g is None else times(g, tf.cast(factor, g.dtype)) for g in gradients]

    def after_exchange(
        self, gradients: Sequence[Gradient | None], variables: Sequence[FrameworkVariable]
    ) -> None:
        """Notes the whole batch's gradients, except those that a branch of a condition makes."""
        for gradient, variable in zip(gradients, variables, strict=False):
            if gradient is None:
                continue
            values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            # No session can fetch a tensor of a branch.
            if values.graph is self._graph and self._graph.is_fetchable(values):
                self.reduced.append(
                    (cast("NamedVariable", getattr(variable, "op", variable)).name, gradient)
                )

    def ways(self, plan: SplitPlan) -> dict[object, bool]:
        """Returns what the step is fed with so that it follows a plan."""
        found = {
            "gradients": plan.gradients == "sum",
            "loss": self._loss_is_sum or plan.logs.get(0) == "sum",
        }
        return {tensor: found[what] for what, tensor in self._ways.items()}

    def before_assign(self, variable: tf.Variable) -> None:
        """Does nothing: an assignment is not noted."""

    def before_read(self, variable: tf.Variable) -> None:
        """Does nothing: a value that is read is this worker's."""


def loss_of_all(scope: GraphScope, loss: tf.Tensor | None) -> tf.Tensor:
    """Returns the loss of the global batch, from that of this worker's rows.

    It is the mean of the workers' losses weighted by their samples, or their sum if losses are
    sums.
    """
    assert loss is not None  # an EstimatorSpec for training or evaluation has one
    loss = tf.reshape(tf.convert_to_tensor(loss), [])
    if scope.session.comm.size == 1:
        return loss
    # By `where`, and not by a factor of 0: the loss of a row that does not count may be infinite.
    scope.own_loss = tf.where(scope.active, loss, tf.zeros_like(loss))
    share = tf.where(scope.adds("loss"), 1.0, scope.fraction())
    mine = tf.where(scope.active, loss * tf.cast(share, loss.dtype), tf.zeros_like(loss))
    return ops.allreduce(scope.session.comm, tf.stop_gradient(mine))


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
    totals: hooks.GraphVariables,
    steps: int | None,
) -> list[float]:
    """Runs steps until the data or ``steps`` end, and returns their losses.

    A worker without samples adds nothing to metrics.

    Raises:
        ValueError: there is no batch.
    """
    losses: list[float] = []
    while not any(comm.agree("stop evaluating?", float(session.should_stop()))) and (
        steps is None or len(losses) < steps
    ):
        before = totals.read(without_hooks(session)) if comm.size > 1 else []
        try:
            loss, active, _ = session.run(fetches)
        except tf.errors.OutOfRangeError:
            break
        losses.append(float(loss))
        if not active:
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
