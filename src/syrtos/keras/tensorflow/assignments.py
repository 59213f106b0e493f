"""The variables assigned in a step or in `strategy.run`, and in which of the two a thread is."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from syrtos.comm.communicator import Communicator
from syrtos.keras.split.shares import Assignments
from syrtos.keras.tensorflow import ops, tf_internals_graphs
from syrtos.keras.trainer.timing import computing
from syrtos.records import record_of
from syrtos.scopes import set_within

if TYPE_CHECKING:
    from syrtos.keras.protocols import R
    from syrtos.keras.tensorflow.step import TensorFlowStep
    from syrtos.keras.tensorflow.tf_internals import TracedFunctions

_step: ContextVar[TensorFlowStep | None] = ContextVar("step", default=None)
_training: ContextVar[bool] = ContextVar("training", default=False)
_run: ContextVar[RunScope | None] = ContextVar("run", default=None)
_whole: ContextVar[bool] = ContextVar("whole", default=False)


class _FunctionAssignments:
    """Variables that a script's `tf.function` assigned while it was traced in `strategy.run`."""

    def __init__(self) -> None:
        self.variables: dict[int, tf.Variable] = {}


def current_step() -> TensorFlowStep | None:
    """Returns the step that is being traced or run on this thread."""
    return _step.get()


def computes_whole_batch() -> bool:
    """Returns whether this thread and all workers compute the whole batch: see `as_one_process`."""
    return _whole.get()


@contextlib.contextmanager
def as_one_process() -> Iterator[None]:
    """Makes code mean what it means in one process, within the context.

    There is no step on a share, nothing is noted, and tf.distribute sees one replica.
    """
    with set_within(_step, None), set_within(_run, None), set_within(_whole, True):
        yield


@contextlib.contextmanager
def within_step(step: TensorFlowStep | None, training: bool) -> Iterator[None]:
    """Makes ``step`` the current one of this thread, within the context; None: there is none."""
    with set_within(_step, step), set_within(_training, training):
        yield


def training_now() -> bool:
    """Returns whether this thread traces or runs a step of `fit`, shared with others or not."""
    return _training.get()


def _watching() -> TensorFlowStep | RunScope | None:
    """Returns the record of assignments of `fit`'s step, or of the innermost `strategy.run`."""
    return current_step() or _run.get()


def pausing_notes() -> contextlib.AbstractContextManager[None]:
    """Context manager: assignments inside are not noted.

    They are equal on all workers, as those of an optimizer's update are.
    """
    watching = _watching()
    return watching.pausing_notes() if watching else contextlib.nullcontext()


def functions_of_step() -> TracedFunctions | None:
    """Returns the script's `tf.function`s as traced for the current step, if there is one."""
    step = current_step()
    return step.functions if step else None


@contextlib.contextmanager
def calling(function: Callable[..., object]) -> Iterator[None]:
    """Context manager: counts time and assignments of a call of a script's `tf.function`."""
    run = None if current_step() else _run.get()
    with computing(function), run.calling(function) if run else contextlib.nullcontext():
        yield


class Watcher(Assignments):
    """Notes variables that are assigned, with the values that they had before."""

    def __init__(self) -> None:
        super().__init__()
        # None where it runs eagerly; an Estimator's step is in a graph always.
        self._graph: Any = tf_internals_graphs.graph()

    def before_assign(self, variable: tf.Variable) -> None:
        """Notes the value from before the first assignment."""
        if self._paused or id(variable) in self._dirty:
            return
        # In the graph of the step: one of a branch inside of it could not be used outside of the
        # branch.
        with _in_graph(self._graph):
            self._dirty[id(variable)] = (variable, tf.identity(private_read(variable)))

    def before_read(self, variable: tf.Variable) -> None:
        """Does nothing: inside `strategy.run` a worker sees what it has added itself."""


class RunScope(Watcher):
    """The assignments inside `strategy.run` in a script's own loop, and how they become equal.

    They become what `tf.distribute` reads of such variables outside of `run`: SUM (metric states)
    is the sum over the workers of what each added, ONLY_FIRST_REPLICA is rank 0's value, MEAN and
    other floating ones (moving statistics) are the mean.
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__()
        self._comm = comm

    @contextlib.contextmanager
    def noting_assignments(self) -> Iterator[RunScope]:
        """Notes the assignments within the context, and makes the variables equal at its end."""
        with set_within(_run, self):
            yield self
        self._make_equal()

    @contextlib.contextmanager
    def calling(self, function: Callable[..., object]) -> Iterator[None]:
        """Counts a call of ``function`` as assigning what earlier calls assigned.

        See the function `calling`.
        """
        # A later call traces nothing, so no assignment is seen in it.
        known = record_of(function, _FunctionAssignments).variables
        for variable in known.values():
            self.before_assign(variable)
        yield
        known.update({key: variable for key, (variable, _) in self._dirty.items()})

    def _make_equal(self) -> None:
        """Makes the noted variables equal on all workers."""
        for variable, _ in self._dirty.values():
            # A broadcast of its own for each: these may be of any dtype, e.g. strings.
            if variable.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA:
                variable.assign(ops.broadcast(self._comm, private_read(variable)))
        found = [(variable, self._part(variable, base)) for variable, base in self._dirty.values()]
        parts = [(variable, *part) for variable, part in found if part is not None]
        if not parts:
            return
        # One exchange for all others, of float64, which holds counters and float32 states exactly.
        vector = tf.concat([tf.reshape(mine, [-1]) for _, mine, _ in parts], axis=0)
        summed = tf.ensure_shape(ops.allreduce(self._comm, vector), vector.shape)
        totals = tf.split(summed, tf.stack([tf.size(mine) for _, mine, _ in parts]), num=len(parts))
        for (variable, mine, before), total in zip(parts, totals, strict=True):
            variable.assign(tf.cast(before + tf.reshape(total, tf.shape(mine)), variable.dtype))

    def _part(
        self, variable: tf.Variable, base: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | float] | None:
        """Returns what this worker adds to a sum over the workers, and what the sum is added to.

        None for a number that changes alike on all of them (a random seed), or is rank 0's.
        """
        aggregation = variable.aggregation
        if is_sum(variable):
            before = tf.cast(base, tf.float64)
            return tf.cast(private_read(variable), tf.float64) - before, before
        mean = variable.dtype.is_floating or aggregation == tf.VariableAggregation.MEAN
        if not mean or aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA:
            return None
        return tf.cast(private_read(variable), tf.float64) / self._comm.size, 0.0


def track_variable(variable: tf.Variable) -> tf.Variable:
    """Lets steps see when ``variable`` is assigned and read."""
    # The variable itself gets another class: TensorFlow has handed it out already.
    variable.__class__ = _tracked_class(type(variable))
    return variable


@functools.cache
def _tracked_class(base: type) -> type:
    changing = [
        "assign",
        "assign_add",
        "assign_sub",
        *(name for name in dir(base) if name.startswith("scatter_")),
    ]
    members = {name: _noting_assign(getattr(base, name)) for name in changing}
    members |= {name: _noting_read(getattr(base, name)) for name in ("value", "read_value")}
    return type(base.__name__, (base,), {**members, "_syrtos_base": base})


def _noting_assign(method: Callable[..., R]) -> Callable[..., R]:
    def assign(self: tf.Variable, *args: object, **kwargs: object) -> R:
        watching = _watching()
        if watching:
            watching.before_assign(self)
        return method(self, *args, **kwargs)

    return assign


def _noting_read(method: Callable[..., R]) -> Callable[..., R]:
    def read(self: tf.Variable, *args: object, **kwargs: object) -> R:
        watching = _watching()
        if watching:
            watching.before_read(self)
        return method(self, *args, **kwargs)

    return read


def private_read(variable: tf.Variable) -> tf.Tensor:
    """Returns the value as it is, without telling the step."""
    return variable._syrtos_base.read_value(variable)


def is_sum(variable: tf.Variable) -> bool:
    """Returns whether workers' changes to a variable are summed, as for a metric's state."""
    return variable.aggregation == tf.VariableAggregation.SUM


def _in_graph(graph: tf.Graph | None) -> contextlib.AbstractContextManager[object]:
    return tf.init_scope() if graph is None else graph.as_default()
