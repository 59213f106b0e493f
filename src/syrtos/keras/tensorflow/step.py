"""A step of `fit`, `evaluate` or `predict` on this worker's share of the global batch.

The invariant: after every step all variables are equal on all workers. Trainable ones are, because every worker applies
the same gradients. For the others a step notes what it assigns, and makes it equal by what the variable is:

- SUM (metric states): the changes of all workers are added to the value before the step;
- others of a floating dtype (BatchNormalization's moving statistics): the mean by samples;
- integers (random seeds, counters) change alike on all workers;
- where the first batch has shown another rule (see `syrtos.keras.split.first_batch`), that rule.

Results of metrics are read after that, so logs, callbacks and `evaluate` see what one process would have seen.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import tensorflow as tf

from syrtos.comm.communicator import Array, Communicator
from syrtos.comm.world import Session
from syrtos.keras.features import local_steps
from syrtos.keras.split import verdicts
from syrtos.keras.split.plan import Rule, SplitPlan, Unproven
from syrtos.keras.split.shares import Assignments
from syrtos.keras.split.trial_step import StepOutcome
from syrtos.keras.tensorflow import decisions, gathering, ops, tf_internals, tf_internals_graphs
from syrtos.keras.tensorflow.input import Numbered, Share, count_rows, has_rows
from syrtos.keras.trainer.timing import clock, computing

_local = threading.local()
# The variables that each of the script's own `tf.function`s assigned while it was traced inside `strategy.run`.
_assigned_by: weakref.WeakKeyDictionary[Any, dict[int, tf.Variable]] = weakref.WeakKeyDictionary()


def current_step() -> StepScope | None:
    """Returns the step that is being traced or run on this thread."""
    return getattr(_local, "step", None)


def is_whole() -> bool:
    """Returns whether this thread computes the whole batch, as every other worker does: see `whole_batch`."""
    return getattr(_local, "whole", False)


@contextlib.contextmanager
def whole_batch() -> Iterator[None]:
    """Makes code mean what it means in one process, within the context.

    There is no step on a share, nothing is noted, and tf.distribute sees one replica.
    """
    before = {name: getattr(_local, name, None) for name in ("step", "run", "whole")}
    _local.step, _local.run, _local.whole = None, None, True
    try:
        yield
    finally:
        _local.step, _local.run, _local.whole = before["step"], before["run"], bool(before["whole"])


def training_now() -> bool:
    """Returns whether a step of `fit` is being traced or run on this thread, shared with others or not."""
    return getattr(_local, "training", False)


def _watching() -> StepScope | RunScope | None:
    """Returns the record of assignments: that of the step of `fit`, or of the innermost `strategy.run`."""
    return current_step() or getattr(_local, "run", None)


def pausing_notes() -> contextlib.AbstractContextManager[Any]:
    """Context manager: assignments inside are not noted; they are equal on all workers (an optimizer's update)."""
    watching = _watching()
    return watching.pausing_notes() if watching else contextlib.nullcontext()


def functions_of_step() -> dict[int, Any] | None:
    """Returns the script's `tf.function`s as traced for the current step, if there is one."""
    step = current_step()
    return step.functions if step else None


@contextlib.contextmanager
def calling(function: Any) -> Iterator[None]:
    """Context manager for a call of one of the script's `tf.function`s.

    Its time is counted. Inside `strategy.run` a later call, which traces nothing, counts as assigning what the first
    did.
    """
    run = None if current_step() else getattr(_local, "run", None)
    with computing(function), run.calling(function) if run else contextlib.nullcontext():
        yield


class _Watcher(Assignments):
    """Notes variables that are assigned, with the values that they had before."""

    def __init__(self) -> None:
        super().__init__()
        self._graph = tf_internals_graphs.graph()

    def before_assign(self, variable: tf.Variable) -> None:
        """Notes the value from before the first assignment."""
        if self._paused or id(variable) in self._dirty:
            return
        with _in_graph(self._graph):
            self._dirty[id(variable)] = (variable, tf.identity(private_read(variable)))

    def before_read(self, variable: tf.Variable) -> None:
        """Does nothing: inside `strategy.run` a worker sees what it has added itself."""


class RunScope(_Watcher):
    """The assignments of a function inside `strategy.run`, in a loop of the script's own, and how they become equal.

    They become what `tf.distribute` reads of such variables outside of `run`: SUM (metric states) is the sum over the
    workers of what each added, ONLY_FIRST_REPLICA is rank 0's value, MEAN and other floating ones (moving statistics)
    are the mean.
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__()
        self._comm = comm

    @contextlib.contextmanager
    def noting_assignments(self) -> Iterator[RunScope]:
        """Notes the assignments within the context, and makes the variables equal at its end."""
        outer, _local.run = getattr(_local, "run", None), self
        try:
            yield self
        finally:
            _local.run = outer
        self._make_equal()

    @contextlib.contextmanager
    def calling(self, function: Any) -> Iterator[None]:
        """Counts a call of ``function`` as assigning what earlier calls assigned: see the function `calling`."""
        known = _assigned_by.setdefault(function, {})
        for variable in known.values():
            self.before_assign(variable)
        yield
        known.update({key: variable for key, (variable, _) in self._dirty.items()})

    def _make_equal(self) -> None:
        """Makes the noted variables equal on all workers.

        All but those of rank 0's value take one exchange, of a vector of float64, which holds counters and float32
        states exactly.
        """
        for variable, _ in self._dirty.values():
            if variable.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA:  # of any dtype
                variable.assign(ops.broadcast(self._comm, private_read(variable)))
        found = [(variable, self._part(variable, base)) for variable, base in self._dirty.values()]
        parts = [(variable, *part) for variable, part in found if part is not None]
        if not parts:
            return
        vector = tf.concat([tf.reshape(mine, [-1]) for _, mine, _ in parts], axis=0)
        summed = tf.ensure_shape(ops.allreduce(self._comm, vector), vector.shape)
        totals = tf.split(summed, tf.stack([tf.size(mine) for _, mine, _ in parts]), num=len(parts))
        for (variable, mine, before), total in zip(parts, totals, strict=True):
            variable.assign(tf.cast(before + tf.reshape(total, tf.shape(mine)), variable.dtype))

    def _part(self, variable: tf.Variable, base: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | float] | None:
        """Returns what this worker adds to a sum over the workers, and what the sum is added to.

        None for a number that changes alike on all of them (a random seed), or is rank 0's.
        """
        aggregation = variable.aggregation
        if _is_sum(variable):
            before = tf.cast(base, tf.float64)
            return tf.cast(private_read(variable), tf.float64) - before, before
        mean = variable.dtype.is_floating or aggregation == tf.VariableAggregation.MEAN
        if not mean or aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA:
            return None
        return tf.cast(private_read(variable), tf.float64) / self._comm.size, 0.0


class StepScope(_Watcher):
    """The state of a step while it is traced (or run, eagerly).

    Attributes:
        session: the workers.
        samples: float32 scalar, samples in this worker's share; 0 if it has none.
        data: the share; one row that does not count if it has none, so that the model never sees an empty batch.
        training: whether random numbers should differ between workers.
        reduces_early: whether gradients are reduced where they are made, by `GradientTape.gradient`, for code that
            looks at them; else where an optimizer of Keras's own takes them.
        plan: the way such steps are split, as the first batch has shown.
        functions: the script's own `tf.function`s, traced for this step.
    """

    def __init__(
        self, session: Session, data: Any, training: bool, reduces_early: bool = False, plan: SplitPlan | None = None, outcome: StepOutcome | None = None
    ) -> None:  # fmt: skip
        """
        Args:
            session: the workers.
            data: a `Share` or a whole batch.
            training: see above.
            reduces_early: see above; the plan may overrule it.
            plan: see above.
            outcome: takes what this worker itself has computed, if this is a trial on the first batch that does not
                count.
        """
        super().__init__()
        self.session = session
        self.training = training
        self.plan = plan or SplitPlan()
        adds, late = (self.plan.gradients == way for way in ("sum", "late"))
        self.reduces_early = (reduces_early and not late) or (training and adds)
        self._outcome = outcome
        self.samples, self.data = _count_samples(data)
        if isinstance(data, Share) and not self.plan.whole and self.splits_batch:
            _check_even(self.data)
        self._ready = _ready_at(self.data)
        self._sums_count = float(local_steps.sums_count(training))
        if self._graph is not None:
            clock.step_is_traced()
        self.functions: dict[int, Any] = {}
        self._flushed = False
        self._totals: dict[tuple[str, int], tf.Tensor] = {}

    @contextlib.contextmanager
    def as_current_step(self) -> Iterator[Self]:
        """Makes this the current step, if it is shared with others, or would be but for `--sync-every`."""
        outer, training = current_step(), training_now()
        _local.step = self if self.session.comm.size > 1 or (self.training and local_steps.rounds()) else None
        _local.training = self.training
        try:
            yield self
        finally:
            _local.step, _local.training = outer, training

    @property
    def active(self) -> tf.Tensor:
        """Boolean scalar: whether this worker has samples."""
        return self.samples > 0

    def total(self, name: str, value: tf.Tensor) -> tf.Tensor:
        """Returns the sum of a scalar over the workers that have samples; exchanged once for each name and step."""
        key = (
            name,
            id(tf_internals_graphs.graph()),
        )  # a tensor made in a branch of tf.cond can't be used outside of it
        if key not in self._totals:
            mine = tf.where(self.active, tf.cast(value, tf.float32), 0.0)
            self._totals[key] = ops.allreduce(self.session.comm, tf.stop_gradient(mine)) * self._sums_count
        return self._totals[key]

    def fraction(self) -> tf.Tensor:
        """Returns this worker's part of the step's samples, float32; 1 where it has none, to divide by."""
        total = self.total("samples", self.samples)
        return tf.where(self.active, self.samples / tf.maximum(total, 1.0), 1.0)

    # -- around the exchange of gradients, for steps of graphs -----------------------------------------

    def before_exchange(self, gradients: list[Any]) -> list[Any]:
        """Returns the gradients whose mean by samples is to be taken."""
        return gradients

    def after_exchange(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Does nothing: gradients are compared where an optimizer takes them."""

    # -- numbers of the global batch, for losses and metrics ---------------------------------------

    def weight_of(self, values: Any) -> tf.Tensor | None:
        """Returns `fraction` where ``values`` is one number; None where it has rows."""
        return self.fraction() if tf.convert_to_tensor(values).shape.rank == 0 else None

    def fraction_like(self, values: Any) -> tf.Tensor:
        """Returns `fraction` in the dtype of ``values``."""
        return tf.cast(self.fraction(), values.dtype)

    def total_like(self, values: Any) -> tf.Tensor:
        """Returns the sum of all elements of all workers that have samples, without a gradient."""
        return tf.cast(self._sum_of(values), values.dtype)

    def mask_factor(self, mask: Any, like: Any) -> tf.Tensor:
        """Turns mask weights normalized within the share into weights normalized within the global batch."""
        mask = tf.cast(mask, tf.float32)
        elements, valid = tf.cast(tf.size(mask), tf.float32), tf.reduce_sum(mask)
        everywhere = self._sum_of(elements) / tf.maximum(self._sum_of(valid), 1.0)
        return tf.cast(everywhere * tf.math.divide_no_nan(valid, elements), like.dtype)

    def _sum_of(self, values: Any) -> tf.Tensor:
        mine = tf.where(self.active, tf.reduce_sum(tf.cast(values, tf.float32)), 0.0)
        return ops.allreduce(self.session.comm, tf.stop_gradient(mine)) * self._sums_count

    # -- the whole batch on each worker ----------------------------------------------------------

    @property
    def is_tried(self) -> bool:
        """Returns whether this is a step on the first batch that does not count."""
        return self._outcome is not None

    @property
    def splits_batch(self) -> bool:
        """Returns whether this worker has a part of a batch, and not one of its own."""
        return verdicts.is_split(self.session)

    def whole_batch(self) -> contextlib.AbstractContextManager[None]:
        """Context manager: code inside computes the whole batch, as the function `whole_batch` says."""
        return whole_batch()

    def rows_of_all(self, tree: Any) -> Any:
        """Returns the structure with the rows of all workers: see `syrtos.keras.backend.Step`."""
        return gathering.rows_of_all(self, tree)

    # -- called by the variables ---------------------------------------------------------------

    def before_read(self, variable: tf.Variable) -> None:
        """Makes a metric's state global before it is read again."""
        if self._paused or id(variable) not in self._dirty or not _is_sum(variable):
            return
        if tf_internals_graphs.always_runs_with(self._graph):
            self.flush()

    # -- making state equal --------------------------------------------------------------------

    def run(self, step: Callable[[Any], Any], batch: Any = None) -> Any:
        """Returns the outputs of a step on this worker's share or, if it is not split, on the rows of all workers.

        Those have the static shapes of ``batch``, out of which the share was cut: a stateful layer of one row can't be
        traced without. Its rows are not taken: where threads decide what a record is, another worker read others.
        """
        if not self.plan.whole:
            return step(self.data)
        rows = self.rows_of_all(self.data)
        if isinstance(batch, Numbered) and self.splits_batch:
            for leaf, like in zip(tf.nest.flatten(rows), tf.nest.flatten(batch.data), strict=True):
                if isinstance(like, tf.Tensor):
                    leaf.set_shape(like.shape)
        with whole_batch():
            return step(rows)

    def finish(self, outputs: Any, logs_are_global: bool) -> Any:
        """Makes the rest of the state equal and, unless they are global already, the logs.

        Floating scalars among the outputs of a custom `train_step` become their mean by samples, or what the plan says.
        """
        self._check_decisions()
        logs_are_global = logs_are_global or bool(self.plan.whole)
        numbers = [] if logs_are_global or self.session.comm.size == 1 else numbers_of(outputs)
        if self._outcome is not None:
            self._outcome.own_logs = [np.asarray(number) for number in numbers]
        rules: dict[int, Rule] = {
            i: self.plan.logs.get(i, "mean" if _is_log(number) else "equal") for i, number in enumerate(numbers)
        }
        scalars = [number for i, number in enumerate(numbers) if rules[i] == "mean"]
        means = self.flush(scalars, always=not self._flushed)
        replace = {id(old): new for old, new in zip(scalars, means, strict=True)}
        replace |= {
            id(n): self._combine(n, rules[i]) for i, n in enumerate(numbers) if rules[i] not in ("mean", "equal")
        }
        return tf.nest.map_structure(lambda t: replace.get(id(t), t), outputs) if replace else outputs

    def _combine(self, number: Any, rule: Rule) -> tf.Tensor:
        """Returns the sum, maximum or minimum over the workers that have samples."""
        value = tf.convert_to_tensor(number)
        if value.dtype == tf.bool:
            return tf.cast(self._combine(tf.cast(value, tf.int32), rule), tf.bool)
        if rule == "sum":
            return ops.allreduce(self.session.comm, tf.where(self.active, value, tf.zeros_like(value)))
        least = rule == "max"
        other = tf.fill(tf.shape(value), tf.constant(value.dtype.min if least else value.dtype.max, value.dtype))
        rows = ops.allgather(self.session.comm, tf.where(self.active, value, other)[tf.newaxis])
        return tf.ensure_shape((tf.reduce_max if least else tf.reduce_min)(rows, axis=0), value.shape)

    def flush(self, scalars: list[tf.Tensor] | None = None, always: bool = False) -> list[tf.Tensor]:
        """Makes all noted variables equal in one exchange; returns the means by samples of ``scalars``."""
        dirty, self._dirty = self._dirty, {}
        self._check_shown(dirty)
        rules = {key: self._rule_of(v) for key, (v, _) in dirty.items()}
        if self._outcome is not None:
            self._outcome.own |= {key: private_read(variable).numpy() for key, (variable, _) in dirty.items()}
        sums, means = (
            [(v, base) for key, (v, base) in dirty.items() if rules[key] == rule] for rule in ("sum", "mean")
        )
        extremes = [(v, base, rules[key]) for key, (v, base) in dirty.items() if rules[key] in ("max", "min")]
        scalars = scalars or []
        if not (sums or means or extremes or scalars or always):
            return []
        self._flushed = True
        with self.pausing_notes():
            return self._exchange_state(sums, means, extremes, scalars)

    def _check_decisions(self) -> None:
        """Refuses to be traced where the step decides by a number of this worker's rows.

        Raises:
            Unproven: later batches may show what the compared ones have not.
        """
        if self._graph is None or not self.plan.tried or self.plan.whole or not self.splits_batch:
            return
        if found := decisions.first_decision(self._graph, tf.nest.flatten(self.data)):
            self.plan.unproven = verdicts.describe_decision(found)
            raise Unproven(self.plan.unproven)

    def _check_shown(self, dirty: dict[int, tuple[tf.Variable, tf.Tensor]]) -> None:
        """Refuses to be traced where a variable is assigned, in a branch of `tf.cond` e.g., which no comparison has met.

        Raises:
            Unproven: it is not known what becomes of its values.
        """
        if self._outcome is not None or self._graph is None or self.plan.whole or not self.splits_batch:
            return
        for key, (variable, _) in dirty.items():
            if not _is_sum(variable) and not self.plan.shows(key):
                self.plan.unproven = (
                    f"no comparison of rows has shown what becomes of `{variable.name}`, which it assigns in some steps"
                )
                raise Unproven(self.plan.unproven)

    def _exchange_state(
        self, sums: list[Any], means: list[Any], extremes: list[Any], scalars: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        changes = [tf.cast(private_read(v), tf.float64) - tf.cast(base, tf.float64) for v, base in sums]
        weight = tf.cast(self.samples, tf.float64)
        weighted = [tf.cast(x, tf.float64) * weight for x in [*(private_read(v) for v, _ in means), *scalars]]
        values = [self._in_own_row(variable, base) for variable, base, _ in extremes]
        everyone = self._sum_over_workers(tf.cast(self.samples, tf.float64), changes + weighted, values)
        total, added = everyone[0], everyone[1:]
        for (variable, base), change in zip(sums, added, strict=False):
            variable.assign(tf.cast(tf.cast(base, tf.float64) + change, variable.dtype))
        averages = [tf.math.divide_no_nan(x, total) for x in added[len(sums) : len(changes + weighted)]]
        for (variable, base), average in zip(means, averages, strict=False):
            variable.assign(tf.where(total > 0, tf.cast(average, variable.dtype), base))
        for (variable, _, rule), rows in zip(extremes, added[len(changes + weighted) :], strict=True):
            extreme = tf.reduce_max if rule == "max" else tf.reduce_min
            variable.assign(tf.cast(extreme(rows, axis=0), variable.dtype))
        return [tf.cast(a, s.dtype) for a, s in zip(averages[len(means) :], scalars, strict=True)]

    def _rule_of(self, variable: tf.Variable) -> Rule:
        """Returns the rule by which the workers' values of a variable become one."""
        if known := self.plan.variables.get(id(variable)):
            return known
        return "sum" if _is_sum(variable) else "mean" if variable.dtype.is_floating else "equal"

    def _in_own_row(self, variable: tf.Variable, base: tf.Tensor) -> tf.Tensor:
        """Returns a row for each worker, all zeros but this worker's: the sum over the workers has the values of all.

        A worker without samples has added nothing: its row is the value from before the step.
        """
        mine = tf.cast(tf.where(self.active, private_read(variable), base), tf.float64)
        comm = self.session.comm
        return tf.stack([mine if rank == comm.rank else tf.zeros_like(mine) for rank in range(comm.size)])

    def _sum_over_workers(
        self, samples: tf.Tensor, tensors: list[tf.Tensor], of_all: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns the sums over the workers, first of ``samples``.

        All travel as one vector of float64, which holds counters and float32 states exactly. ``tensors`` count as zeros
        on a worker without samples.
        """
        sent = [*tensors, *of_all]
        exchange = functools.partial(self._on_host, len(tensors))
        found = ops.exchange(exchange, [self._ready, samples, *sent], [tf.float64] * (1 + len(sent)))
        return [tf.ensure_shape(sums, tensor.shape) for sums, tensor in zip(found, [samples, *sent], strict=True)]

    def _on_host(self, of_samples: int, when: Array, samples: Array, *values: Array) -> list[Array]:
        # In Python, for each operation of a graph takes longer to be traced than all of this.
        counted = [value if i >= of_samples or samples else np.zeros_like(value) for i, value in enumerate(values)]
        arrays = [samples, *counted]
        summed = self.session.comm.allreduce(np.concatenate([array.reshape(-1) for array in arrays]))
        ends = np.cumsum([array.size for array in arrays])
        sums = [part.reshape(array.shape) for part, array in zip(np.split(summed, ends[:-1]), arrays, strict=True)]
        if self._outcome is None:
            asked, ready = when.tolist()
            is_first, rounds = clock.data_was_ready(self.session, asked, ready, float(samples)), local_steps.rounds()
            if is_first and self.training and rounds:
                rounds.count(float(samples))
        return sums


def track_variable(variable: tf.Variable) -> tf.Variable:
    """Lets steps see when ``variable`` is assigned and read."""
    variable.__class__ = _tracked_class(type(variable))
    return variable


_tracked_classes: dict[type, type] = {}


def _tracked_class(base: type) -> type:
    if base not in _tracked_classes:
        changing = ["assign", "assign_add", "assign_sub", *(name for name in dir(base) if name.startswith("scatter_"))]
        members = {name: _noting_assign(getattr(base, name)) for name in changing}
        members |= {name: _noting_read(getattr(base, name)) for name in ("value", "read_value")}
        _tracked_classes[base] = type(base.__name__, (base,), {**members, "_syrtos_base": base})
    return _tracked_classes[base]


def _noting_assign(method: Callable[..., Any]) -> Callable[..., Any]:
    def assign(self: tf.Variable, *args: Any, **kwargs: Any) -> Any:
        watching = _watching()
        if watching:
            watching.before_assign(self)
        tf_internals.assigning(self)
        return method(self, *args, **kwargs)

    return assign


def _noting_read(method: Callable[..., Any]) -> Callable[..., Any]:
    def read(self: tf.Variable, *args: Any, **kwargs: Any) -> Any:
        watching = _watching()
        if watching:
            watching.before_read(self)
        return method(self, *args, **kwargs)

    return read


def private_read(variable: Any) -> tf.Tensor:
    """Returns the value as it is, without telling the step."""
    return variable._syrtos_base.read_value(variable)


def _is_sum(variable: tf.Variable) -> bool:
    return variable.aggregation == tf.VariableAggregation.SUM


def numbers_of(outputs: Any) -> list[Any]:
    """Returns the numbers, and tensors of numbers, among what a step returns, in order."""
    return [leaf for leaf in tf.nest.flatten(outputs) if _is_number(leaf)]


def _is_number(leaf: Any) -> bool:
    if isinstance(leaf, tf.Tensor | tf.Variable):
        return leaf.dtype.is_floating or leaf.dtype.is_integer or leaf.dtype.is_bool
    return isinstance(leaf, float | int | np.generic)


def _is_log(value: Any) -> bool:
    """Returns whether a number is a floating scalar tensor.

    Some metrics give a variable as their result. It is none, and is read once all state is equal.
    """
    return isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_floating


def _in_graph(graph: Any) -> contextlib.AbstractContextManager[Any]:
    return tf.init_scope() if graph is None else graph.as_default()


def _ready_at(data: Any) -> tf.Tensor:
    """Returns when the data was asked for and when it was there: float64 seconds since the epoch, shape (2,)."""
    tensors = [leaf for leaf in tf.nest.flatten(data, expand_composites=True) if isinstance(leaf, tf.Tensor)]
    with tf.control_dependencies(tensors[:1]):
        return tf.stack([tf_internals.asked_at(), tf.timestamp()])


def _count_samples(data: Any) -> tuple[tf.Tensor, Any]:
    """Returns the number of samples, float32, and the rows of a share or of a whole batch."""
    if isinstance(data, Share):
        return tf.cast(data.samples, tf.float32), data.data
    leaf = next((leaf for leaf in tf.nest.flatten(data) if has_rows(leaf)), None)
    return tf.constant(1.0) if leaf is None else tf.cast(count_rows(leaf), tf.float32), data


_UNEVEN = (
    "The tensors of a batch have unequal numbers of rows, so it can't be split over the workers by rows. Give what is no sample to the model itself, or give "
    "all batches such a form: a model whose first batch has it computes the whole batch on each worker."
)


def _check_even(data: Any) -> None:
    """Refuses a share whose tensors have unequal numbers of rows: a later batch than the first may have them.

    Raises:
        tf.errors.InvalidArgumentError: when the step runs.
    """
    leaves = [leaf for leaf in tf.nest.flatten(data) if has_rows(leaf)]
    known = {leaf.shape[0] for leaf in leaves}
    if len(known) == 1 and None not in known:
        return
    counts = tf.stack([tf.cast(count_rows(leaf), tf.int64) for leaf in leaves])
    are_equal = tf.reduce_all(tf.equal(counts, counts[0]))
    tf.raw_ops.Assert(condition=are_equal, data=[tf.constant(_UNEVEN)])  # `tf.debugging` makes ten operations of it


def rows_of(active: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """Drops the rows that a worker without samples has computed from a row that does not count.

    Outputs may have any number of rows.
    """
    return output[: tf.where(active, tf.shape(output)[0], 0)]
