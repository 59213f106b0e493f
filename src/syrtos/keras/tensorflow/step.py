"""A step of `fit`, `evaluate` or `predict` on this worker's share of the global batch.

The invariant: after every step all variables are equal on all workers. Trainable ones are, because
every worker applies the same gradients. For the others a step notes what it assigns, and makes it
equal by what the variable is:

- SUM (metric states): the changes of all workers are added to the value before the step;
- others of a floating dtype (BatchNormalization's moving statistics): the mean by samples;
- integers (random seeds, counters) change alike on all workers;
- where the first batch has shown another rule (see `syrtos.keras.split.first_batch`), that rule.

Results of metrics are read after that, so logs, callbacks and `evaluate` see what one process would
have seen.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeGuard

import numpy as np
import tensorflow as tf

from syrtos.comm.communicator import Array
from syrtos.comm.world import Session
from syrtos.keras.features import registry
from syrtos.keras.split import verdicts
from syrtos.keras.split.plan import Rule, SplitPlan
from syrtos.keras.split.trial_step import StepOutcome
from syrtos.keras.tensorflow import (
    gathering,
    ops,
    tf_internals_graphs,
    tf_internals_iterators,
)
from syrtos.keras.tensorflow.assignments import (
    Watcher,
    as_one_process,
    is_sum,
    private_read,
    within_step,
)
from syrtos.keras.tensorflow.graph_checks import GraphChecks
from syrtos.keras.tensorflow.input import Numbered, TensorShare
from syrtos.keras.tensorflow.rows import count_rows, has_rows, static_shape
from syrtos.keras.trainer.timing import StepClock

if TYPE_CHECKING:
    from syrtos.keras.protocols import FrameworkVariable
    from syrtos.keras.tensorflow.tf_internals import TracedFunctions
    from syrtos.keras.tensorflow.types import BatchStep, Gradient, Number, Tree


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
        plan: the way such steps are split, as the first batch has shown.
        functions: the script's own `tf.function`s, traced for this step.
    """

    def __init__(
        self, session: Session, data: object, training: bool, reduces_early: bool = False, plan: SplitPlan | None = None, outcome: StepOutcome | None = None,
        draws_by_rank: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            session: the workers.
            data: a `TensorShare` or a whole batch.
            training: see above.
            reduces_early: see above; the plan may overrule it.
            plan: see above.
            outcome: takes what this worker itself has computed, if this is a trial on the first
                batch that does not count.
            draws_by_rank: see above; it is so in training always. Where a step makes weights, which
                are drawn alike on all workers, only training makes them equal afterwards.
        """
        super().__init__()
        self.session = session
        self.training = training
        self.draws_by_rank = draws_by_rank or training
        self.plan = plan or SplitPlan()
        self.reduces_early = self.plan.reduces_where_made(reduces_early)
        self._outcome = outcome
        self.samples, self.data = count_samples(data)
        # Where each worker has a batch of its own nothing is split, and where it computes all rows
        # neither.
        if isinstance(data, TensorShare) and not self.plan.reason_not_split and self.splits_batch:
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

    def draws_once(self, shape: object) -> bool:
        """Returns whether a random draw is made once for the batch: see `Step.draws_once`."""
        # In a graph inside of the step's, such as a loop, it may be made for each row.
        if not self.plan.batch_draws or tf_internals_graphs.graph() is not self._graph:
            return False
        return self.plan.draws_once(static_shape(shape))

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

    # -- around the exchange of gradients, for steps of graphs -----------------------------------------

    def before_exchange(self, gradients: list[Gradient | None]) -> list[Gradient | None]:
        """Returns the gradients whose mean by samples is to be taken."""
        return gradients

    def after_exchange(
        self, gradients: Sequence[Gradient | None], variables: Sequence[FrameworkVariable]
    ) -> None:
        """Does nothing: gradients are compared where an optimizer takes them."""

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

    # -- the whole batch on each worker ----------------------------------------------------------

    @property
    def is_tried(self) -> bool:
        """Returns whether this is a step on the first batch that does not count."""
        return self._outcome is not None

    @property
    def splits_batch(self) -> bool:
        """Returns whether this worker has a part of a batch, and not one of its own."""
        return verdicts.is_split(self.session)

    def as_one_process(self) -> contextlib.AbstractContextManager[None]:
        """Context manager: computes the whole batch inside, as the function `as_one_process` says."""
        return as_one_process()

    def rows_of_all(self, tree: Tree) -> Tree:
        """Returns the structure with the rows of all workers: see `syrtos.keras.backend.Step`."""
        return gathering.rows_of_all(self, tree)

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

    def run(self, step: BatchStep, batch: object = None) -> object:
        """Returns a step's outputs on this worker's share or, if not split, on all workers' rows.

        Those have the static shapes of ``batch``, out of which the share was cut.
        """
        if not self.plan.reason_not_split:
            return step(self.data)
        # Not the rows of `batch`: where threads decide what a record is, another worker has read
        # others.
        rows = self.rows_of_all(self.data)
        # A stateful layer of one row can't be traced without static shapes.
        if isinstance(batch, Numbered) and self.splits_batch:
            for leaf, like in zip(tf.nest.flatten(rows), tf.nest.flatten(batch.data), strict=True):
                if isinstance(like, tf.Tensor):
                    leaf.set_shape(like.shape)
        with as_one_process():
            return step(rows)

    def graph_checks(self) -> GraphChecks | None:
        """Returns the checks of the step's graph; None where it has none, or is not split."""
        if self._graph is None or self.plan.reason_not_split or not self.splits_batch:
            return None
        return GraphChecks(self._graph, self.plan, tf.nest.flatten(self.data))

    def finish(self, outputs: Tree, logs_are_global: bool) -> Tree:
        """Makes the rest of the state equal and, unless they are global already, the logs.

        Floating scalars among the outputs of a custom `train_step` become their mean by samples, or
        what the plan says.
        """
        if checks := self.graph_checks():
            checks.check_computation()
        logs_are_global = logs_are_global or bool(self.plan.reason_not_split)
        numbers = [] if logs_are_global or self.session.comm.size == 1 else numbers_of(outputs)
        if self._outcome is not None:
            self._outcome.own_logs = [np.asarray(number) for number in numbers]
        replace = self.plan.combine_logs(
            numbers,
            _is_log,
            lambda means: self.flush(means, always=not self._flushed),
            self._combine,
        )
        return (
            tf.nest.map_structure(lambda t: replace.get(id(t), t), outputs) if replace else outputs
        )

    def gather(self, outputs: Tree) -> Tree:
        """Returns the outputs of a `predict_step` with the rows of all workers, in order.

        With batches per worker each keeps its own.
        """
        if self.plan.reason_not_split:
            return outputs
        if checks := self.graph_checks():
            checks.check_draws_of_prediction()
        if self.splits_batch:
            return self.rows_of_all(outputs)
        return tf.nest.map_structure(
            lambda out: _rows_of(self.active, out) if out.shape.rank != 0 else out, outputs
        )

    def _combine(self, number: Number, rule: Rule) -> tf.Tensor:
        """Returns the sum, maximum or minimum over the workers that have samples."""
        value = tf.convert_to_tensor(number)
        if value.dtype == tf.bool:
            return tf.cast(self._combine(tf.cast(value, tf.int32), rule), tf.bool)
        if rule == "sum":
            return ops.allreduce(
                self.session.comm, tf.where(self.active, value, tf.zeros_like(value))
            )
        least = rule == "max"
        other = tf.fill(
            tf.shape(value), tf.constant(value.dtype.min if least else value.dtype.max, value.dtype)
        )
        rows = ops.allgather(self.session.comm, tf.where(self.active, value, other)[tf.newaxis])
        return tf.ensure_shape(
            (tf.reduce_max if least else tf.reduce_min)(rows, axis=0), value.shape
        )

    def flush(
        self, scalars: list[tf.Tensor] | None = None, always: bool = False
    ) -> list[tf.Tensor]:
        """Makes all noted variables equal in one exchange.

        It returns the means by samples of ``scalars``.
        """
        dirty, self._dirty = self._dirty, {}
        if self._outcome is None and (checks := self.graph_checks()):
            checks.check_assigned((key, variable) for key, (variable, _) in dirty.items())
        rules: dict[int, Rule] = {key: self._rule_of(v) for key, (v, _) in dirty.items()}
        if self._outcome is not None:
            self._outcome.own |= {
                key: private_read(variable).numpy() for key, (variable, _) in dirty.items()
            }
        sums, means = (
            [(v, base) for key, (v, base) in dirty.items() if rules[key] == rule]
            for rule in ("sum", "mean")
        )
        extremes: list[tuple[tf.Variable, tf.Tensor, Rule]] = [
            (v, base, rules[key])
            for key, (v, base) in dirty.items()
            if rules[key] in ("max", "min")
        ]
        scalars = scalars or []
        if not (sums or means or extremes or scalars or always):
            return []
        self._flushed = True
        with self.pausing_notes():
            return self._exchange_state(sums, means, extremes, scalars)

    def _exchange_state(
        self,
        sums: list[tuple[tf.Variable, tf.Tensor]],
        means: list[tuple[tf.Variable, tf.Tensor]],
        extremes: list[tuple[tf.Variable, tf.Tensor, Rule]],
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
        values = [self._in_own_row(variable, base) for variable, base, _ in extremes]
        everyone = self._sum_over_workers(
            tf.cast(self.samples, tf.float64), changes + weighted, values
        )
        total, added = everyone[0], everyone[1:]
        for (variable, base), change in zip(sums, added, strict=False):
            variable.assign(tf.cast(tf.cast(base, tf.float64) + change, variable.dtype))
        averages = [
            tf.math.divide_no_nan(x, total) for x in added[len(sums) : len(changes + weighted)]
        ]
        for (variable, base), average in zip(means, averages, strict=False):
            variable.assign(tf.where(total > 0, tf.cast(average, variable.dtype), base))
        for (variable, _, rule), rows in zip(
            extremes, added[len(changes + weighted) :], strict=True
        ):
            extreme = tf.reduce_max if rule == "max" else tf.reduce_min
            variable.assign(tf.cast(extreme(rows, axis=0), variable.dtype))
        return [tf.cast(a, s.dtype) for a, s in zip(averages[len(means) :], scalars, strict=True)]

    def _rule_of(self, variable: tf.Variable) -> Rule:
        """Returns the rule by which the workers' values of a variable become one."""
        if known := self.plan.variables.get(id(variable)):
            return known
        return "sum" if is_sum(variable) else "mean" if variable.dtype.is_floating else "equal"

    def _in_own_row(self, variable: tf.Variable, base: tf.Tensor) -> tf.Tensor:
        """Returns a row for each worker, all zeros but this worker's.

        The sum of these tensors over the workers has the values of all. A worker without samples
        has added nothing: its row is the value from before the step.
        """
        mine = tf.cast(tf.where(self.active, private_read(variable), base), tf.float64)
        comm = self.session.comm
        return tf.stack(
            [mine if rank == comm.rank else tf.zeros_like(mine) for rank in range(comm.size)]
        )

    def _sum_over_workers(
        self, samples: tf.Tensor, tensors: list[tf.Tensor], of_all: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns the sums over the workers, first of ``samples``.

        ``tensors`` count as zeros on a worker without samples.
        """
        # All travel as one vector of float64, which holds counters and float32 states exactly.
        sent = [*tensors, *of_all]
        exchange = functools.partial(self._on_host, len(tensors))
        found = ops.exchange(
            exchange, [self._ready, samples, *sent], [tf.float64] * (1 + len(sent))
        )
        return [
            tf.ensure_shape(sums, tensor.shape)
            for sums, tensor in zip(found, [samples, *sent], strict=True)
        ]

    def _on_host(self, of_samples: int, when: Array, samples: Array, *values: Array) -> list[Array]:
        # In Python, for each operation of a graph takes longer to be traced than all of this.
        counted = [
            value if i >= of_samples or samples else np.zeros_like(value)
            for i, value in enumerate(values)
        ]
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
        if self._outcome is None:
            asked, ready = when.tolist()
            clock = self.session.part(StepClock)
            is_first = clock.data_was_ready(self.session, asked, ready, float(samples))
            for feature in registry.active() if is_first and self.training else ():
                feature.count_samples(float(samples))
        return sums


def numbers_of(outputs: object) -> list[Any]:
    """Returns the numbers, and tensors of numbers, among what a step returns, in order."""
    return [leaf for leaf in tf.nest.flatten(outputs) if _is_number(leaf)]


def _is_number(leaf: object) -> TypeGuard[Number]:
    if isinstance(leaf, tf.Tensor | tf.Variable):
        return leaf.dtype.is_floating or leaf.dtype.is_integer or leaf.dtype.is_bool
    return isinstance(leaf, float | int | np.generic)


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
        return tf.stack([tf_internals_iterators.asked_at(), tf.timestamp()])


def count_samples(data: object) -> tuple[tf.Tensor, Any]:
    """Returns the number of samples, float32, and the rows of a share or of a whole batch."""
    if isinstance(data, TensorShare):
        return tf.cast(data.samples, tf.float32), data.data
    leaf = next((leaf for leaf in tf.nest.flatten(data) if has_rows(leaf)), None)
    return tf.constant(1.0) if leaf is None else tf.cast(count_rows(leaf), tf.float32), data


_UNEVEN = (
    "The tensors of a batch have unequal numbers of rows, so it can't be split over the workers by"
    " rows. Give what is no sample to the model itself, or give all batches such a form: a model"
    " whose first batch has it computes the whole batch on each worker."
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
