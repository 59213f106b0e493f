"""A step of `fit`, `evaluate` or `predict` on this worker's share of the global batch.

The invariant: after every step all variables are equal on all workers. Trainable ones are, because
every worker applies the same gradients. For the others a step notes what it assigns, and makes it
equal by what the variable is:

- SUM (metric states): the changes of all workers are added to the value before the step;
- others of a floating dtype (BatchNormalization's moving statistics): the mean by samples;
- integers (random seeds, counters) change alike on all workers.

Results of metrics are read after that, so logs, callbacks and `evaluate` see what one process would
have seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self, TypeGuard

import numpy as np
import tensorflow as tf

from syrtos.comm.communicator import Array
from syrtos.comm.world import Session
from syrtos.keras.features import registry
from syrtos.keras.split import verdicts
from syrtos.keras.tensorflow import (
    ops,
    tf_internals_graphs,
    tf_internals_iterators,
)
from syrtos.keras.tensorflow.assignments import (
    Watcher,
    is_sum,
    private_read,
    within_step,
)
from syrtos.keras.tensorflow.input import TensorShare
from syrtos.keras.tensorflow.rows import count_rows, has_rows
from syrtos.keras.trainer.timing import StepClock

if TYPE_CHECKING:
    from syrtos.keras.tensorflow.tf_internals import TracedFunctions
    from syrtos.keras.tensorflow.types import Gradient, Tree


class TensorFlowStep(Watcher):
    """The state of a step while it is traced (or run, eagerly).

    Attributes:
        session: the workers.
        samples: float32 scalar, samples in this worker's share; 0 if it has none.
        data: the share; one row that does not count if it has none, so that the model never sees an
            empty batch.
        training: whether it is a step of `fit`.
        draws_by_rank: whether random numbers differ between workers, as the rows do.
        reduces_early: whether gradients are reduced where they are made, by
            `GradientTape.gradient`, for code that looks at them; else where an optimizer of Keras's
            own takes them.
        functions: the script's own `tf.function`s, traced for this step.
    """

    def __init__(
        self,
        session: Session,
        data: object,
        training: bool,
        reduces_early: bool = False,
        draws_by_rank: bool = False,
    ) -> None:
        """
        Args:
            session: the workers.
            data: a `TensorShare` or a whole batch.
            training: see above.
            reduces_early: see above.
            draws_by_rank: see above; it is so in training always. Where a step makes weights, which
                are drawn alike on all workers, only training makes them equal afterwards.
        """
        super().__init__()
        self.session = session
        self.training = training
        self.draws_by_rank = draws_by_rank or training
        self.reduces_early = reduces_early
        self.samples, self.data = count_samples(data)
        # Where each worker has a batch of its own nothing is split.
        if isinstance(data, TensorShare) and verdicts.is_split(session):
            _check_even(self.data)
        self._ready = ready_at(self.data)
        self._sum_factor = float(registry.sum_factor(training))
        if self._graph is not None:
            self.session.part(StepClock).step_is_traced()
        self.functions: TracedFunctions = {}
        self._flushed = False
        self._totals: dict[tuple[str, int], tf.Tensor] = {}

    @contextlib.contextmanager
    def as_current_step(self) -> Iterator[Self]:
        """Makes this the current step if it is shared, or would be but for `--sync-every`."""
        is_shared = self.session.comm.size > 1 or (self.training and registry.trains_apart())
        with within_step(self if is_shared else None, self.training):
            yield self

    @property
    def active(self) -> tf.Tensor:
        """Boolean scalar: whether this worker has samples."""
        return self.samples > 0

    def total(self, name: str, value: tf.Tensor) -> tf.Tensor:
        """Returns a scalar's sum over workers with samples, exchanged once per name and step."""
        # For each graph: a tensor made in a branch of tf.cond can't be used outside of it.
        key = (name, id(tf_internals_graphs.graph()))
        if key not in self._totals:
            mine = tf.where(self.active, tf.cast(value, tf.float32), 0.0)
            self._totals[key] = (
                ops.allreduce(self.session.comm, tf.stop_gradient(mine)) * self._sum_factor
            )
        return self._totals[key]

    def fraction(self) -> tf.Tensor:
        """Returns this worker's part of the step's samples, float32.

        It is 1 where the worker has no samples, so that one can divide by it.
        """
        total = self.total("samples", self.samples)
        return tf.where(self.active, self.samples / tf.maximum(total, 1.0), 1.0)

    # -- before the exchange of gradients, for steps of graphs -------------------------------------

    def before_exchange(self, gradients: list[Gradient | None]) -> list[Gradient | None]:
        """Returns the gradients whose mean by samples is to be taken."""
        return gradients

    # -- numbers of the global batch, for losses and metrics ---------------------------------------

    # Metrics are given anything that can be a tensor.
    def weight_of(self, values: Any) -> tf.Tensor | None:
        """Returns `fraction` where ``values`` is one number; None where it has rows."""
        return self.fraction() if tf.convert_to_tensor(values).shape.rank == 0 else None

    def fraction_like(self, values: tf.Tensor) -> tf.Tensor:
        """Returns `fraction` in the dtype of ``values``."""
        return tf.cast(self.fraction(), values.dtype)

    def total_like(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the sum of all elements of all workers that have samples, without a gradient."""
        return tf.cast(self._sum_of(values), values.dtype)

    def mask_factor(self, mask: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        """Returns the factor between mask weights normalized in the share and the global batch."""
        mask = tf.cast(mask, tf.float32)
        elements, valid = tf.cast(tf.size(mask), tf.float32), tf.reduce_sum(mask)
        everywhere = self._sum_of(elements) / tf.maximum(self._sum_of(valid), 1.0)
        return tf.cast(everywhere * tf.math.divide_no_nan(valid, elements), like.dtype)

    def _sum_of(self, values: tf.Tensor) -> tf.Tensor:
        mine = tf.where(self.active, tf.reduce_sum(tf.cast(values, tf.float32)), 0.0)
        return ops.allreduce(self.session.comm, tf.stop_gradient(mine)) * self._sum_factor

    # -- called by the variables ---------------------------------------------------------------

    def before_read(self, variable: tf.Variable) -> None:
        """Makes a metric's state global before it is read again."""
        if self._paused or id(variable) not in self._dirty or not is_sum(variable):
            return
        # In a branch of tf.cond not all workers may exchange: there a worker sees what it has added
        # itself.
        if tf_internals_graphs.always_runs_with(self._graph):
            self.flush()

    # -- making state equal --------------------------------------------------------------------

    def finish(self, outputs: Tree, logs_are_global: bool) -> Tree:
        """Makes the rest of the state equal and, unless they are global already, the logs.

        Floating scalars among the outputs of a custom `train_step` become their mean by samples.
        """
        is_whole = logs_are_global or self.session.comm.size == 1
        logs = [] if is_whole else [leaf for leaf in tf.nest.flatten(outputs) if _is_log(leaf)]
        means = self.flush(logs, always=not self._flushed)
        replace = {id(log): mean for log, mean in zip(logs, means, strict=True)}
        return (
            tf.nest.map_structure(lambda t: replace.get(id(t), t), outputs) if replace else outputs
        )

    def own_rows(self, outputs: Tree) -> Tree:
        """Returns the outputs of a `predict_step` on a batch of this worker's own."""
        return tf.nest.map_structure(
            lambda out: _rows_of(self.active, out) if out.shape.rank != 0 else out, outputs
        )

    def flush(
        self, scalars: list[tf.Tensor] | None = None, always: bool = False
    ) -> list[tf.Tensor]:
        """Makes all noted variables equal in one exchange.

        It returns the means by samples of ``scalars``.
        """
        dirty, self._dirty = self._dirty, {}
        sums = [(v, base) for v, base in dirty.values() if is_sum(v)]
        means = [(v, base) for v, base in dirty.values() if v.dtype.is_floating and not is_sum(v)]
        scalars = scalars or []
        if not (sums or means or scalars or always):
            return []
        self._flushed = True
        with self.pausing_notes():
            return self._exchange_state(sums, means, scalars)

    def _exchange_state(
        self,
        sums: list[tuple[tf.Variable, tf.Tensor]],
        means: list[tuple[tf.Variable, tf.Tensor]],
        scalars: list[tf.Tensor],
    ) -> list[tf.Tensor]:
        # All in one exchange, of changes and weighted values that are zeros on a worker without
        # samples.
        changes = [
            tf.cast(private_read(v), tf.float64) - tf.cast(base, tf.float64) for v, base in sums
        ]
        weight = tf.cast(self.samples, tf.float64)
        weighted = [
            tf.cast(x, tf.float64) * weight
            for x in [*(private_read(v) for v, _ in means), *scalars]
        ]
        everyone = self._sum_over_workers(tf.cast(self.samples, tf.float64), changes + weighted)
        total, added = everyone[0], everyone[1:]
        for (variable, base), change in zip(sums, added, strict=False):
            variable.assign(tf.cast(tf.cast(base, tf.float64) + change, variable.dtype))
        averages = [tf.math.divide_no_nan(x, total) for x in added[len(sums) :]]
        for (variable, base), average in zip(means, averages, strict=False):
            variable.assign(tf.where(total > 0, tf.cast(average, variable.dtype), base))
        return [tf.cast(a, s.dtype) for a, s in zip(averages[len(means) :], scalars, strict=True)]

    def _sum_over_workers(self, samples: tf.Tensor, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over the workers, first of ``samples``.

        ``tensors`` count as zeros on a worker without samples.
        """
        # All travel as one vector of float64, which holds counters and float32 states exactly.
        found = ops.exchange(
            self._on_host, [self._ready, samples, *tensors], [tf.float64] * (1 + len(tensors))
        )
        return [
            tf.ensure_shape(sums, tensor.shape)
            for sums, tensor in zip(found, [samples, *tensors], strict=True)
        ]

    def _on_host(self, when: Array, samples: Array, *values: Array) -> list[Array]:
        # In Python, for each operation of a graph takes longer to be traced than all of this.
        counted = [value if samples else np.zeros_like(value) for value in values]
        # The number of samples is the first: the means are divided by its sum.
        arrays = [samples, *counted]
        summed = self.session.comm.allreduce(
            np.concatenate([array.reshape(-1) for array in arrays])
        )
        ends = np.cumsum([array.size for array in arrays])
        sums = [
            part.reshape(array.shape)
            for part, array in zip(np.split(summed, ends[:-1]), arrays, strict=True)
        ]
        count_step(self.session, self.training, when, float(samples))
        return sums


def count_step(session: Session, training: bool, when: Array, samples: float) -> None:
    """Counts the samples of this worker in a step, and the time for which it waited for its data.

    Args:
        session: the workers.
        training: whether it is a step of `fit`.
        when: as `ready_at` returns it.
        samples: their number.
    """
    asked, ready = when.tolist()
    is_first = session.part(StepClock).data_was_ready(session, asked, ready, samples)
    for feature in registry.active() if is_first and training else ():
        feature.count_samples(samples)


def _is_log(value: object) -> TypeGuard[tf.Tensor]:
    """Returns whether a number is a floating scalar tensor."""
    # Some metrics give a variable as their result. It is no such number: it is read once all state
    # is equal.
    return isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_floating


def ready_at(data: object) -> tf.Tensor:
    """Returns when the data was asked for and when it was there.

    The times are float64 seconds since the epoch, shape (2,).
    """
    tensors = [
        leaf
        for leaf in tf.nest.flatten(data, expand_composites=True)
        if isinstance(leaf, tf.Tensor)
    ]
    # The clock is read when the first tensor is there, not when the step begins.
    with tf.control_dependencies(tensors[:1]):
        return tf.stack([tf_internals_iterators.asked_at(), tf_internals_iterators.timestamp()])


def count_samples(data: object) -> tuple[tf.Tensor, Any]:
    """Returns the number of samples, float32, and the rows of a share or of a whole batch."""
    if isinstance(data, TensorShare):
        return tf.cast(data.samples, tf.float32), data.data
    leaf = next((leaf for leaf in tf.nest.flatten(data) if has_rows(leaf)), None)
    return tf.constant(1.0) if leaf is None else tf.cast(count_rows(leaf), tf.float32), data


_UNEVEN = (
    "The tensors of a batch have unequal numbers of rows, so it can't be split over the workers by"
    " rows where each trains on its share. Give what is no sample to the model itself."
)


def _check_even(data: object) -> None:
    """Refuses a share whose tensors have unequal numbers of rows.

    Later batches than the first may have such shares.

    Raises:
        tf.errors.InvalidArgumentError: when the step runs.
    """
    leaves = [leaf for leaf in tf.nest.flatten(data) if has_rows(leaf)]
    known = {leaf.shape[0] for leaf in leaves}
    if len(known) == 1 and None not in known:
        return
    counts = tf.stack([tf.cast(count_rows(leaf), tf.int64) for leaf in leaves])
    are_equal = tf.reduce_all(tf.equal(counts, counts[0]))
    # Not by `tf.debugging`, which makes ten operations of it.
    tf.raw_ops.Assert(condition=are_equal, data=[tf.constant(_UNEVEN)])


def _rows_of(active: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """Drops the rows that a worker without samples has computed from a row that does not count.

    Outputs may have any number of rows.
    """
    return output[: tf.where(active, tf.shape(output)[0], 0)]
