"""The reduction of an optimizer's or a tape's gradients over the workers: when it happens, and by which rule."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np
import tensorflow as tf

from syrtos.api import unconverted
from syrtos.comm import world
from syrtos.comm.communicator import Array, Bounds, Communicator, ReduceOp
from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.errors import ConfigurationError
from syrtos.keras import keras_internals
from syrtos.keras.features import finite, local_steps, sharding
from syrtos.keras.replica import state
from syrtos.keras.tensorflow import ops, tf_internals, tf_internals_graphs
from syrtos.keras.tensorflow.step import StepScope, current_step, is_whole
from syrtos.keras.trainer import exchange_plan

_MARK = "_syrtos_reduction"
_APPLIED = "_syrtos_applied"
_COMPUTED = "_syrtos_computed"
_READY = "_syrtos_ready"
# The number of reductions of this process so far: a change shows that there was one.
reductions = 0
_zero_edits = False
_by_tape = False


class Compression(Protocol):
    """A way to compress gradients for their exchange, e.g. in fewer bits (Horovod's interface)."""

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor that is sent, and the context that `decompress` needs."""
        ...

    def decompress(self, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Returns the gradient, from the sum or mean of the tensors that were sent."""
        ...


@dataclasses.dataclass(frozen=True)
class Reduction:
    """The rule by which the gradients of one optimizer or tape are reduced over the workers.

    Attributes:
        comm: the workers.
        op: MEAN, SUM or ADASUM.
        factor: the number by which the reduced gradients are multiplied.
        compression: how dense gradients are compressed for the exchange; None: they are not.
        sparse_as_dense: whether `tf.IndexedSlices` are made dense first.
        local: variables that each worker trains by itself, under `state.identity`.
        local_factor: the number by which their gradients are multiplied, besides ``factor``.
        lend: whether reduced gradients may be memory that all workers of the host look at (see `ops.weighted_mean`).
        bounds: for each gradient the bounds of the workers' parts, if each worker gets its own part alone.
    """

    comm: Communicator
    op: ReduceOp = ReduceOp.MEAN
    factor: float = 1.0
    compression: Compression | None = None
    sparse_as_dense: bool = False
    local: dict[int, Any] = dataclasses.field(default_factory=dict)
    local_factor: float = 1.0
    lend: bool = False
    bounds: Bounds = ()

    def apply(
        self, grads: Sequence[Any], variables: Sequence[Any] = (), weight: Any = 1.0, may_merge: bool = False
    ) -> list[Any]:
        """Reduces gradients (tensors, `tf.IndexedSlices`, arrays or None) given in the order of ``variables``.

        With MEAN a worker's gradients count by its ``weight``, float32.
        """
        global reductions
        reductions += 1
        results = [self._as_tensor(g, v) for g, v in itertools.zip_longest(grads, variables[: len(grads)])]
        mine = {i for i, v in enumerate(variables) if state.identity(v) in self.local}
        shared = [i for i, g in enumerate(results) if g is not None and i not in mine]
        owners = state.held_objects(variables[i] for i in shared) if len(variables) == len(results) else []
        if owners and self.comm.size > 1:
            sent = [results[i] for i in shared]
            rows = [k for k, gradient in enumerate(sent) if isinstance(gradient, tf.IndexedSlices)]
            exchange_plan.tell([variables[i] for i in shared], lambda: ops.buckets(sent), rows)
        bounds = [self.bounds[i] for i in shared] if self.bounds else ()
        reduced = self._reduce_tensors([results[i] for i in shared], weight, may_merge, owners, bounds)
        for i, gradient in zip(shared, reduced, strict=True):
            results[i] = times(gradient, self.factor)
        for i in mine:
            results[i] = times(results[i], self.factor * self.local_factor)
        return results

    def _as_tensor(self, gradient: Any, variable: Any) -> Any:
        """Converts a gradient, of any form that Keras takes, to a tensor or `tf.IndexedSlices`.

        Keras takes arrays and lists too, and rows that do not say of how many.
        """
        if isinstance(gradient, tf.IndexedSlices):
            rows = _complete(gradient, variable)
            return tf.convert_to_tensor(rows) if self.sparse_as_dense else rows
        if gradient is None or tf.is_tensor(gradient):
            return gradient
        tensor = tf.convert_to_tensor(gradient)
        return tensor if variable is None else tf.cast(tensor, variable.dtype)

    def _reduce_tensors(
        self, grads: list[Any], weight: Any, may_merge: bool, variables: list[Any], bounds: Sequence[Any]
    ) -> list[Any]:
        if self.comm.size == 1 or not grads:
            return grads
        if self.op is ReduceOp.ADASUM:
            return [ops.allreduce(self.comm, tf.convert_to_tensor(g), self.op) for g in grads]
        sent, contexts = self._compress(grads)
        mean = ops.weighted_mean(self.comm, sent, tf.cast(weight, tf.float32), may_merge, self.lend, variables, bounds)
        if self.op is ReduceOp.SUM:
            mean = [times(g, self.comm.size) for g in mean]
        return self._decompress(mean, contexts)

    def _compress(self, grads: list[Any]) -> tuple[list[Any], list[Any]]:
        if self.compression is None:
            return grads, []
        pairs = [(g, None) if isinstance(g, tf.IndexedSlices) else self.compression.compress(g) for g in grads]
        return [sent for sent, _ in pairs], [context for _, context in pairs]

    def _decompress(self, grads: list[Any], contexts: list[Any]) -> list[Any]:
        if self.compression is None:
            return grads
        pairs = zip(grads, contexts, strict=True)
        return [g if isinstance(g, tf.IndexedSlices) else self.compression.decompress(g, c) for g, c in pairs]


# -- gradients of a step of the script's own ----------------------------------------------------------


def reduced_where_made(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `GradientTape.gradient` and its like: gradients of variables become those of the global batch.

    This is done in a training step of the script's own. What the script does with the gradients (clipping, norms, a
    second pass at other weights, an optimizer of its own) is then what it is in one process. Gradients by anything
    else, e.g. inputs, stay this worker's.
    """

    def gradient(first: Any, second: Any, *args: Any, **kwargs: Any) -> Any:
        step = current_step()
        if step is None or not step.reduces_early or not _reduces_here():
            return original(first, second, *args, **kwargs)
        made = original(first, second, *args, **kwargs)
        sources = _sources_of(first, second, args, kwargs)
        variables = tf.nest.flatten(sources)
        if not variables or not all(map(_is_variable, variables)):
            return made
        grads = tf.nest.flatten(made)
        adds = step.plan.gradients == "sum"
        weight = tf.cast(step.active, tf.float32) if adds else step.samples
        apply = Reduction(step.session.comm).apply
        if tf_internals.may_be_recorded():
            apply = functools.partial(_reduced_differentiably, step.session.comm)
        reduced = apply(grads, () if step.is_tried else variables, weight)
        if adds:  # a mean over the workers that have samples, times their number
            workers = step.total("workers", tf.constant(1.0))
            reduced = [g if g is None else times(g, tf.cast(workers, g.dtype)) for g in reduced]
        return tf.nest.pack_sequence_as(made, reduced)

    return gradient


_local = threading.local()


def of_own_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `GradientTape.jacobian` and its like: the gradients that they take row by row stay this worker's."""

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        outer, _local.of_rows = getattr(_local, "of_rows", False), True
        try:
            return original(*args, **kwargs)
        finally:
            _local.of_rows = outer

    return jacobian


def _reduces_here() -> bool:
    return not getattr(_local, "of_rows", False)


def _sources_of(first: Any, second: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the sources of `tape.gradient(target, sources)`, or of `tf.gradients(ys, xs)`."""
    if isinstance(first, tf.GradientTape):
        return args[0] if args else kwargs["sources"]
    return second


def _is_variable(source: Any) -> bool:
    return isinstance(state.held_objects([source])[0], tf.Variable)


def _reduced_differentiably(
    comm: Communicator, grads: Sequence[Any], variables: Sequence[Any], weight: Any
) -> list[Any]:
    """Returns the mean by ``weight`` of dense gradients, whose own gradient is reduced in the same way."""
    shared = [i for i, gradient in enumerate(grads) if gradient is not None]
    dense = [tf.convert_to_tensor(grads[i]) for i in shared]

    @tf_internals.custom_gradient
    def mean(*tensors: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
        reduced = ops.weighted_mean(comm, list(tensors), tf.cast(weight, tf.float32))
        return reduced, lambda *dys: ops.weighted_mean(comm, list(dys), tf.cast(weight, tf.float32))

    results = list(grads)
    for index, gradient in zip(shared, tf.nest.flatten(mean(*dense)), strict=True):
        results[index] = gradient
    return results


class ReducingTape:
    """A `tf.GradientTape` whose gradients are reduced over the workers."""

    def __init__(self, tape: tf.GradientTape, reduction: Reduction) -> None:
        """Wraps a tape that has recorded, or will."""
        self._tape = tape
        self._reduction = reduction

    def __enter__(self) -> Self:
        self._tape.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._tape.__exit__(*details)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    @unconverted
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None) -> Any:
        """Returns the reduced gradients of ``target``, in the structure of ``sources``; None where there is none."""
        return self.weighted_gradient(target, sources, output_gradients, 1.0)

    @unconverted
    def weighted_gradient(self, target: Any, sources: Any, output_gradients: Any, weight: Any) -> Any:
        """Returns the gradients as `gradient` does; in a mean this worker's count by ``weight``.

        Such a weight is e.g. the number of the worker's samples.
        """
        grads = self._tape.gradient(target, sources, output_gradients)
        if not isinstance(sources, list | tuple | dict):
            return self._reduction.apply([grads], [sources], weight)[0]
        reduced = self._reduction.apply(tf.nest.flatten(grads), tf.nest.flatten(sources), weight)
        return tf.nest.pack_sequence_as(sources, reduced)


def reduce_by_tape() -> None:
    """Notes that the script's own loops reduce with a `DistributedGradientTape`.

    In such loops only optimizers that were asked to reduce do so: others would reduce a second time.
    """
    global _by_tape
    _by_tape = True


def reduce_all_optimizers() -> None:
    """Makes every Keras optimizer of this process reduce from now on, as `syrtos run` wants it."""
    global _zero_edits
    _zero_edits = True


def mark(optimizer: Any, reduction: Reduction) -> None:
    """Makes one optimizer reduce, also where syrtos was not asked to reduce for all."""
    for each in (optimizer, getattr(optimizer, "inner_optimizer", optimizer)):
        object.__setattr__(each, _MARK, reduction)


def are_reduced() -> bool:
    """Returns whether an optimizer gets gradients that are those of the global batch already.

    That is so where they were reduced when they were made, or where each worker computes the whole batch.
    """
    step = current_step()
    return is_whole() or (step is not None and step.reduces_early)


def reduction_of(optimizer: Any) -> Reduction | None:
    """Returns the rule by which this optimizer's gradients are reduced before they are clipped, or None."""
    if are_reduced():
        return None
    same_function = getattr(optimizer, _COMPUTED, None)
    if same_function and same_function():
        return Reduction(InProcessCommunicator())
    marked = getattr(optimizer, _MARK, None)
    if marked is not None:
        return marked
    if not _zero_edits or world.sharing() is not world.current() or (_by_tape and current_step() is None):
        return None
    if local_steps.rounds():
        return None
    return Reduction(world.current().comm)


def about_to_apply(optimizer: Any, variables: Sequence[Any]) -> None:
    """Notes the variables of the gradients that `reduce_gradients` will be given."""
    object.__setattr__(optimizer, _APPLIED, list(variables))


def reduce_gradients(optimizer: Any, grads: Sequence[Any], lend: bool = True) -> list[Any]:
    """Returns the gradients of the global batch, from those of this worker's share.

    In `fit` they are averaged by samples. In a custom loop with `strategy.run` they are summed, as `tf.distribute`
    defines; in any other loop they are averaged over workers, or reduced as the optimizer was asked to. ``lend`` says
    that nobody but the optimizer uses them: see `ops.weighted_mean`.
    """
    if getattr(optimizer, _READY, False):
        return list(grads)
    sharding.gives_parts(optimizer, False)
    reduction, step = reduction_of(optimizer), current_step()
    results = list(grads) if reduction is None else _exchange_gradients(optimizer, grads, reduction, step, lend)
    if not finite.is_asked() or not grads:
        return results
    with tf.control_dependencies([_looked_at(optimizer, results, grads, reduction, step)]):
        return [tf.nest.map_structure(tf.identity, gradient, expand_composites=True) for gradient in results]


def _exchange_gradients(
    optimizer: Any, grads: Sequence[Any], reduction: Reduction, step: StepScope | None, lend: bool = True
) -> list[Any]:
    _check_computed(optimizer, reduction)
    weighed = step is not None and _accumulates(optimizer)  # by `to_accumulate`
    weight = 1.0 if step is None or weighed else step.samples
    if weighed or (step is None and in_strategy_run()):
        reduction = dataclasses.replace(reduction, op=ReduceOp.SUM)
    variables = getattr(optimizer, _APPLIED, ())
    if lend and reduction.compression is None and _takes_no_slices(optimizer):
        rows = any(isinstance(gradient, tf.IndexedSlices) for gradient in grads)
        bounds = sharding.bounds_between_hosts(optimizer, variables, rows)
        sharding.gives_parts(optimizer, bool(bounds))
        reduction = dataclasses.replace(reduction, lend=True, bounds=bounds)
    return reduction.apply(grads, variables, weight, _adds_rows(optimizer))


def apply_if_finite(optimizer: Any, grads: Sequence[Any], update: Callable[[Sequence[Any]], None]) -> None:
    """Calls ``update`` with reduced gradients, or changes nothing if one of them is not finite on any worker.

    `reduce_gradients` takes these gradients as they are. Of gradients that are accumulated, each batch's part is
    checked before it is added; `reduce_gradients` checks their sum.
    """
    reduction, step = reduction_of(optimizer), current_step()
    accumulates = _accumulates(optimizer)
    results = (
        list(grads) if accumulates or reduction is None else _exchange_gradients(optimizer, grads, reduction, step)
    )
    good = _looked_at(optimizer, results, grads, reduction, step, accumulates)
    with contextlib.nullcontext() if accumulates else _ready(optimizer):
        tf.cond(good, lambda: update(results), lambda: _leave_out(optimizer))


def unless_empty(optimizer: Any, update: Callable[[], None]) -> None:
    """Calls ``update``, except on a worker that trains alone and has no sample of a small batch."""
    step = current_step()
    if local_steps.rounds() and step:
        tf.cond(step.active, update, lambda: _leave_out(optimizer))
    else:
        update()


def _leave_out(optimizer: Any) -> None:
    keras_internals.updates_of(optimizer).assign_sub(1)  # which `apply` adds in any case


@contextlib.contextmanager
def _ready(optimizer: Any) -> Iterator[None]:
    """Makes `reduce_gradients` take this optimizer's gradients as they are, within the context."""
    object.__setattr__(optimizer, _READY, True)
    try:
        yield
    finally:
        object.__setattr__(optimizer, _READY, False)


def reduce_for_script(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Reduces gradients for a script that looks at them, or clips them, before it applies them.

    The next update takes them as they are.
    """
    forget_computed(optimizer)
    broadcast_before_first(optimizer, variables)
    about_to_apply(optimizer, variables)
    results = reduce_gradients(optimizer, to_accumulate(optimizer, grads), lend=False)
    object.__setattr__(optimizer, _COMPUTED, tf_internals_graphs.same_function())
    return results


def forget_computed(optimizer: Any) -> None:
    """Makes the next update reduce its gradients again."""
    object.__setattr__(optimizer, _COMPUTED, None)


def _check_computed(optimizer: Any, reduction: Reduction) -> None:
    """Refuses a second reduction of computed gradients that would change them.

    A mean of equal gradients is the same gradient; a second sum is not.

    Raises:
        ConfigurationError: gradients that one function computed would be summed or scaled again by another.
    """
    same_function = getattr(optimizer, _COMPUTED, None)
    if same_function is None:
        return
    forget_computed(optimizer)
    repeatable = reduction.op is ReduceOp.MEAN and reduction.factor == 1.0 and not reduction.local
    if not same_function() and not repeatable:
        raise ConfigurationError(
            "Gradients of `optimizer.compute_gradients` are reduced; the optimizer can't know them again in another `tf.function`, and would "
            "sum or scale them twice. Call `compute_gradients` and `apply_gradients` in one function, or both outside of functions."
        )


def sum_of_means(size: int) -> float:
    """Returns the number by which a mean over ``size`` workers is multiplied outside of `fit`.

    It is ``size`` in a loop with `strategy.run`, which sums, as `tf.distribute` defines; else 1.
    """
    return float(size) if in_strategy_run() else 1.0


def to_accumulate(optimizer: Any, grads: Sequence[Any]) -> Sequence[Any]:
    """Returns this worker's part of a step's gradients, if several steps are accumulated before they are reduced.

    Other gradients are returned as they are.
    """
    reduction, step = reduction_of(optimizer), current_step()
    if reduction is None or reduction.comm.size == 1 or step is None or not _accumulates(optimizer):
        return grads
    part = tf.where(step.active, step.fraction(), 0.0)
    return [times(_or_zero(g, step.active), tf.cast(part, g.dtype)) if g is not None else None for g in grads]


def _accumulates(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "gradient_accumulation_steps", None))


def _or_zero(gradient: Any, active: tf.Tensor) -> Any:
    """Returns the gradient, or zeros on a worker without samples, whatever its gradient holds."""
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.where(active, gradient.values, tf.zeros_like(gradient.values))
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.where(active, gradient, tf.zeros_like(gradient))


def finite_everywhere(optimizer: Any, finite: tf.Tensor) -> tf.Tensor:
    """Returns whether all workers that have samples found their gradients finite, a Boolean scalar."""
    reduction = reduction_of(optimizer)
    if reduction is None or reduction.comm.size == 1:
        return finite
    step = current_step()
    if step is not None:
        finite = tf.logical_or(finite, tf.logical_not(step.active))
    infinite = tf.cast(tf.logical_not(finite), tf.int32)  # summed: a worker that has joined adds nothing
    return ops.allreduce(reduction.comm, infinite) == 0


def _looked_at(
    optimizer: Any,
    grads: Sequence[Any],
    own: Sequence[Any],
    reduction: Reduction | None,
    step: StepScope | None,
    accumulates: bool = False,
) -> tf.Tensor:
    """Returns whether gradients may be applied, a Boolean scalar.

    This worker's ``own`` gradients are checked only where ``grads`` are not all finite. With ``accumulates``, ``grads``
    are those of this worker's share, else of the global batch.
    """
    own_each = accumulates or (reduction is not None and bool(reduction.local) and finite.leaves_out())
    comm = None if reduction is None or (reduction.local and not own_each) else reduction.comm
    variables = list(getattr(optimizer, _APPLIED, ()))
    flags = _finite(grads)
    if own_each and comm is not None and comm.size > 1:
        mine = flags
        flags = ops.allreduce(comm, tf.cast(tf.logical_not(flags), tf.int32)) == 0
    else:
        mine = tf.cond(tf.reduce_all(flags), lambda: tf.ones_like(flags), lambda: _finite(own))
    if step is not None:
        mine = tf.logical_or(mine, tf.logical_not(step.active))
    in_sum = _accumulates(optimizer) and not accumulates

    def look(flags: Array, mine: Array, update: Array) -> list[Array]:
        if in_sum and finite.leaves_out():
            finite.stop(comm, variables, flags.tolist(), mine.tolist())
        return [np.asarray(finite.look(comm, variables, flags.tolist(), mine.tolist(), int(update) + 1))]

    looked = ops.exchange(look, [flags, mine, tf.convert_to_tensor(optimizer.iterations)], [tf.bool])[0]
    return tf.ensure_shape(looked, [])


def _finite(grads: Sequence[Any]) -> tf.Tensor:
    """Returns for each gradient whether all its numbers are finite: Boolean, shape (number of gradients,)."""
    values = (tf.convert_to_tensor(g.values if isinstance(g, tf.IndexedSlices) else g) for g in grads)
    return tf.stack([tf.reduce_all(tf.math.is_finite(v)) if v.dtype.is_floating else tf.constant(True) for v in values])


def broadcast_before_first(optimizer: Any, variables: Iterable[Any]) -> None:
    """Gives all workers rank 0's weights and optimizer state, once, before the optimizer's first step."""
    reduction = Reduction(world.current().comm) if are_reduced() else reduction_of(optimizer)
    if reduction is None or reduction.comm.size == 1 or getattr(optimizer, state.EQUAL, False):
        return
    with tf.init_scope():
        if tf.executing_eagerly():
            object.__setattr__(optimizer, state.EQUAL, True)
            found = [*variables, *state.of_optimizer(optimizer)]
            state.broadcast(reduction.comm, [v for v in found if state.identity(v) not in reduction.local])


def in_strategy_run() -> bool:
    """Returns whether this code runs inside `strategy.run` of several workers.

    There `tf.distribute` sums what replicas have computed.
    """
    context = tf.distribute.get_replica_context()
    return context is not None and context.strategy.num_replicas_in_sync > 1


def _takes_no_slices(optimizer: Any) -> bool:
    """Returns whether the optimizer only reads a gradient on its way into the variables (see `ops.weighted_mean`).

    Keras's own optimizers that treat each number by itself do so (seen in 3.15.1).
    """
    return type(optimizer).__name__ in keras_internals.ELEMENTWISE and type(optimizer).__module__.startswith("keras.")


def _adds_rows(optimizer: Any) -> bool:
    """Returns whether the optimizer adds both values of a row that is listed twice.

    Only plain gradient descent does. The others square or clip each value by itself (seen in Keras 3.15).
    """
    clips = any(getattr(optimizer, name, None) for name in ("clipnorm", "global_clipnorm", "clipvalue"))
    return any(base.__name__ == "SGD" for base in type(optimizer).__mro__) and not clips


def _complete(rows: tf.IndexedSlices, variable: Any) -> tf.IndexedSlices:
    """Returns the rows as tensors, with the shape of the variable where they do not say it."""
    shape = rows.dense_shape if variable is None or rows.dense_shape is not None else tf.constant(variable.shape)
    return tf.IndexedSlices(tf.convert_to_tensor(rows.values), tf.convert_to_tensor(rows.indices), shape)


def times(gradient: Any, factor: Any) -> Any:
    """Multiplies a gradient (a tensor, `tf.IndexedSlices` or None) by a number."""
    if gradient is None or (isinstance(factor, float) and factor == 1.0):
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor
