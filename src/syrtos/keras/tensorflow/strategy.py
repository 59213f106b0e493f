"""A `tf.distribute.Strategy` whose replicas are the workers: one in each process.

`syrtos run` makes it the process's default strategy, so that a plain script needs no scope. In a
custom loop it keeps the contract of `tf.distribute`: `run` runs the function here, gradients and
`reduce` are over all workers, and the optimizer sums.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.communicator import ReduceOp
from syrtos.comm.world import Session
from syrtos.keras.features import asynchronous
from syrtos.keras.keras_origin import is_of_syrtos
from syrtos.keras.tensorflow import input as input_pipelines
from syrtos.keras.tensorflow import input_policy, ops, tf_internals
from syrtos.keras.tensorflow.assignments import (
    RunScope,
    computes_whole_batch,
    current_step,
    track_variable,
)
from syrtos.keras.trainer import timing

if TYPE_CHECKING:
    from syrtos.keras.tensorflow.step import TensorFlowStep
    from syrtos.keras.tensorflow.types import Gradient, Tree

Result = TypeVar("Result")


class _StrategyState:
    """The one strategy of a session, and whether the script has asked for it itself."""

    def __init__(self, _session: Session) -> None:
        self.strategy: Strategy | None = None
        self.is_chosen = self.has_run = False


def is_chosen() -> bool:
    """Returns whether the script has asked for a strategy itself."""
    return world.part(_StrategyState).is_chosen


def splits_in_script() -> bool:
    """Returns whether the script has a strategy, or the default one, split its own loops."""
    state = world.part(_StrategyState)
    return state.is_chosen or state.has_run


# The packages whose functions meet their data elsewhere, or are programs of all workers.
_FRAMEWORKS = ("keras", "tensorflow", "tf_keras")


def is_of_framework(function: object) -> bool:
    """Returns whether a function, or the one of which a `tf.function` is made, is not of a script."""
    module = getattr(getattr(function, "python_function", function), "__module__", None) or ""
    return module.partition(".")[0] in _FRAMEWORKS or is_of_syrtos(module)


class Strategy(tf.distribute.Strategy):
    """Synchronous training over all workers of the world.

    Usage::

        strategy = syrtos.keras.Strategy()
        with strategy.scope():
            model = keras.Sequential([...])
        for batch in strategy.experimental_distribute_dataset(dataset):  # global batches
            strategy.run(train_step, args=(batch,))
    """

    # Adapts Keras to models under the strategy. What a script gets the strategy from sets it, and
    # may import what stands above this file.
    adapt_keras: ClassVar[Callable[..., None] | None] = None

    def __new__(cls) -> Strategy:
        """Returns the one strategy of this process, which joins the world for it."""
        # TensorFlow refuses to mix two, and `syrtos run` has made one already.
        of_run = world.init().part(_StrategyState)
        of_run.strategy = only = of_run.strategy or super().__new__(cls)
        return only

    def __init__(self) -> None:
        world.part(_StrategyState).is_chosen = True
        self._prepare()

    def _prepare(self) -> None:
        if "_extended" not in self.__dict__:
            # Where workers train at their own pace, each is alone to the strategy.
            session = world.current()
            workers = world.sharing() if session.options.asynchronous else session
            super().__init__(_Extended(self, workers))
            if Strategy.adapt_keras is not None:
                Strategy.adapt_keras()

    def run(
        self,
        fn: Callable[..., Result],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        options: object = None,
    ) -> Result:
        """Calls ``fn`` here, in replica context; its result is this worker's."""
        del options
        session = world.current()
        # A step of `fit` notes its assignments itself.
        shared = current_step() is not None or computes_whole_batch()
        alone = session.world.size == 1 or shared or world.sharing() is not session
        # Also while the whole of a function is traced, whose loop is the script's own.
        if session.world.size > 1 and current_step() is None and not is_of_framework(fn):
            world.part(_StrategyState).has_run = True
        with (
            timing.computing(fn),
            self.scope(),
            contextlib.nullcontext() if alone else RunScope(session.comm).noting_assignments(),
        ):
            return self.extended.call_for_each_replica(fn, args=args, kwargs=kwargs)

    # Its name in TensorFlow 2.0.
    experimental_run_v2 = run


class _ReplicaContext(tf.distribute.ReplicaContext):
    """The one replica of this process."""

    def __init__(self, strategy: tf.distribute.Strategy, rank: int) -> None:
        super().__init__(strategy, replica_id_in_sync_group=rank)

    @property
    def devices(self) -> tuple[str, ...]:
        return self.strategy.extended.worker_devices

    @property
    def replica_id_in_sync_group(self) -> int:
        return 0 if computes_whole_batch() else super().replica_id_in_sync_group

    def all_reduce(
        self, reduce_op: tf.distribute.ReduceOp | str, value: Tree, options: object = None
    ) -> Tree:
        step = current_step()
        if step is None:
            return super().all_reduce(reduce_op, value, options)
        op = tf.distribute.ReduceOp[reduce_op.upper()] if isinstance(reduce_op, str) else reduce_op
        return tf.nest.map_structure(
            lambda v: _reduce_over_samples(step, tf.convert_to_tensor(v), op), value
        )


def not_chosen() -> Strategy:
    """Returns the strategy, without counting it as chosen by the script."""
    # Not by `Strategy()`, with the mark taken back: TensorFlow's threads ask too, while the script
    # may choose one.
    strategy = Strategy.__new__(Strategy)
    strategy._prepare()
    return strategy


def replica_of_world() -> tf.distribute.ReplicaContext:
    """Returns the context in which TensorFlow or Keras sums over all workers without a strategy."""
    return _ReplicaContext(not_chosen(), world.current().world.rank)


def _value_at_start(initial: object) -> object:
    """Returns an initial value for a variable that a step makes while it is traced.

    Another variable is read at once: TensorFlow can't do so before the traced step is called.
    """
    if isinstance(initial, tf.Tensor) or not hasattr(initial, "__tf_tensor__"):
        return initial
    with tf.init_scope():
        try:
            value = tf.convert_to_tensor(cast("tf.Variable", initial))
        except tf.errors.FailedPreconditionError:  # the step makes that variable too
            return initial
    return initial if tf.is_symbolic_tensor(value) else value.numpy()


class _Extended(tf_internals.OneDeviceExtended):
    """The hooks of `tf.distribute`, answered by the communicator."""

    def __init__(self, strategy: tf.distribute.Strategy, session: Session) -> None:
        super().__init__(strategy)
        self._workers = session
        self._alone = session.alone()
        self._cluster_resolver = _Resolver(session)

    @property
    def _session(self) -> Session:
        """The workers to reduce over: all, or this one alone if each computes the whole batch."""
        return self._alone if computes_whole_batch() else self._workers

    # -- variables -----------------------------------------------------------------------------

    def _create_variable(
        self, next_creator: Callable[..., tf.Variable], **kwargs: object
    ) -> tf.Variable:
        initial = kwargs.get("initial_value")
        if tf.inside_function():
            kwargs["initial_value"] = _value_at_start(initial)
        variable = super()._create_variable(next_creator, **kwargs)
        if asynchronous.asynchronous_servers():
            asynchronous.remember(variable)
            return variable
        # Many a script keeps a number of its steps in a variable that it forgot to call
        # untrainable.
        may_be_state = (
            not variable.trainable or kwargs.get("trainable") is None or variable.shape.rank == 0
        )
        watched = may_be_state and (variable.dtype.is_floating or variable.dtype.is_integer)
        return track_variable(variable) if watched else variable

    # -- running and reducing ------------------------------------------------------------------

    def _call_for_each_replica(
        self, fn: Callable[..., Result], args: Sequence[object], kwargs: Mapping[str, object] | None
    ) -> Result:
        with (
            tf.device(self._device),
            _ReplicaContext(self._container_strategy(), self._session.world.rank),
        ):
            return fn(*args, **(kwargs or {}))

    def _use_merge_call(self) -> bool:
        return False  # one replica in this process: nothing to merge

    def _reduce_to(
        self, reduce_op: tf.distribute.ReduceOp, value: Tree, destinations: object, options: object
    ) -> Tree:
        del destinations, options
        return tf.nest.map_structure(lambda v: self._reduce_value(reduce_op, v), value)

    def _replica_ctx_all_reduce(
        self, reduce_op: tf.distribute.ReduceOp, value: Tree, options: object = None
    ) -> Tree:
        del options
        return tf.nest.map_structure(lambda v: self._reduce_value(reduce_op, v), value)

    def _replica_ctx_update(
        self,
        var: tf.Variable,
        fn: Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        group: bool = True,
    ) -> object:
        return self._update(var, fn, args, kwargs or {}, group)

    def _reduce_value(self, reduce_op: tf.distribute.ReduceOp, value: Gradient) -> Gradient:
        comm = self._session.comm
        if isinstance(value, tf.IndexedSlices):
            scale = 1.0 if reduce_op == tf.distribute.ReduceOp.MEAN else float(comm.size)
            (mean,) = ops.weighted_mean(comm, [value], tf.constant(1.0))
            assert isinstance(mean, tf.IndexedSlices)
            return tf.IndexedSlices(
                mean.values * tf.cast(scale, mean.dtype), mean.indices, mean.dense_shape
            )
        op = ReduceOp.MEAN if reduce_op == tf.distribute.ReduceOp.MEAN else ReduceOp.SUM
        return ops.allreduce(comm, tf.convert_to_tensor(value), op)

    def _gather_to_implementation(
        self, value: tf.Tensor, destinations: object, axis: int, options: object
    ) -> tf.Tensor:
        del destinations, options
        # Workers gather along the first axis: the other one takes its place meanwhile.
        order = list(range(value.shape.rank))
        order[0], order[axis] = order[axis], order[0]
        return tf.transpose(ops.allgather(self._session.comm, tf.transpose(value, order)), order)

    # -- input ---------------------------------------------------------------------------------

    def _experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: object
    ) -> tf.data.Dataset:
        del options
        alone = self._session.world.size == 1 or input_policy.gives_whole_batches()
        if alone or tf_internals.is_shared_out(dataset):
            return dataset
        is_own = input_policy.is_own_shard(dataset)
        # A pipeline belongs to the graph in which it is made.
        if not tf.executing_eagerly():
            return self._shares(dataset, is_own)
        how = self._session.input_comm, is_own, input_policy.are_cut_by_steps()
        return tf_internals.kept_shares(dataset, how, lambda: self._shares(dataset, is_own))

    def _shares(self, dataset: tf.data.Dataset, is_own: bool) -> tf.data.Dataset:
        """Returns this worker's shares; ``is_own``: the script shards the data set itself."""
        if is_own:
            split = input_pipelines.split_batches(dataset, self._session.world.size)
            return tf_internals.shared_out(
                input_pipelines.worker_batches(split, self._session.input_comm)
            )
        if self._session.options.batch == "per-worker":
            return tf_internals.shared_out(
                input_pipelines.worker_batches(dataset, self._session.input_comm)
            )
        by_records = input_pipelines.global_records(dataset, self._session.input_comm)
        self._session.ledger.say(input="sliced" if by_records is None else "records")
        if by_records is not None:
            return tf_internals.shared_out(by_records)
        if input_policy.are_cut_by_steps():
            return tf_internals.shared_out(input_pipelines.numbered_batches(dataset))
        return tf_internals.shared_out(
            input_pipelines.global_batches(dataset, self._session.input_comm)
        )

    def _distribute_datasets_from_function(
        self, dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset], options: object
    ) -> tf.data.Dataset:
        del options
        place = self._session.world
        dataset = dataset_fn(tf.distribute.InputContext(place.size, place.rank, place.size))
        if place.size == 1:
            return dataset
        return tf_internals.shared_out(
            input_pipelines.worker_batches(dataset, self._session.input_comm)
        )

    def _experimental_distribute_values_from_function(
        self, value_fn: Callable[[tf.distribute.experimental.ValueContext], Result]
    ) -> Result:
        """Returns the function's value for this rank: the value of this process's one replica."""
        place = self._session.world
        return value_fn(tf.distribute.experimental.ValueContext(place.rank, place.size))

    # -- facts ---------------------------------------------------------------------------------

    @property
    def _num_replicas_in_sync(self) -> int:
        """The number of workers inside `run` or for a script that asked for a strategy; else 1."""
        # In a step of `fit` losses are weighted by samples, and in a loop without `run` each worker
        # sees whole batches: there nothing is to be divided by replicas.
        asked = is_chosen() or not tf.distribute.in_cross_replica_context()
        return self._session.world.size if asked and not current_step() else 1

    def _get_local_replica_id(self, replica_id_in_sync_group: object) -> int:
        del replica_id_in_sync_group
        return 0

    def _in_multi_worker_mode(self) -> bool:
        return self._session.world.size > 1

    @property
    def _task_id(self) -> int:
        """The rank."""
        # Keras Tuner 1.4 and tf_keras 2.21 look for it here, as in MultiWorkerMirroredStrategy, to
        # write beside rank 0's file.
        return self._cluster_resolver.task_id

    @property
    def should_checkpoint(self) -> bool:
        return self._session.world.rank == 0

    @property
    def should_save_summary(self) -> bool:
        return self._session.world.rank == 0


class _Resolver(tf.distribute.cluster_resolver.SimpleClusterResolver):
    """A cluster resolver that tells scripts their place: ``task_id`` is the rank.

    Nothing listens at the addresses.
    """

    def __init__(self, session: Session) -> None:
        place = session.world
        workers = tf.train.ClusterSpec(
            {"worker": [f"worker-{rank}:0" for rank in range(place.size)]}
        )
        super().__init__(workers, task_type="worker", task_id=place.rank)
        self._session = session

    @property
    def task_id(self) -> int:
        """The rank of this worker.

        A script that reads it counts as aware of ranks: it decides itself which worker writes a
        file.
        """
        self._session.rank_aware = True
        return self._session.world.rank


def _reduce_over_samples(
    step: TensorFlowStep, value: tf.Tensor, reduce_op: tf.distribute.ReduceOp
) -> tf.Tensor:
    """Reduces inside a step of `fit`, where every worker's loss will count by its samples."""

    @tf_internals.custom_gradient
    def forward(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        mine = tf.where(step.active, x, tf.zeros_like(x))
        total = ops.allreduce(step.session.comm, mine)

        # The gradient of a sum over workers is the sum of their gradients. This worker's own will
        # later be multiplied by its part of the samples; so the others' are weighted by theirs, and
        # the result is divided by this worker's part.
        def backward(dy: tf.Tensor) -> tf.Tensor:
            part = tf.cast(step.fraction(), dy.dtype)
            weighted = tf.where(step.active, dy * part, tf.zeros_like(dy))
            return ops.allreduce(step.session.comm, weighted) / part

        return total, backward

    total = forward(value)
    if reduce_op == tf.distribute.ReduceOp.MEAN:
        return total / tf.cast(step.total("workers", tf.constant(1.0)), total.dtype)
    return total
