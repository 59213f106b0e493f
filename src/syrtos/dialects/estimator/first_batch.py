"""The first batches of a graph: whether its steps on shares compute what one process computes.

A graph is built once, for a worker's share. What comes into it from outside can be fed, though: rows, their number, random
numbers. Where rank 0 is fed the rows of all workers, and the others rows that do not count, it computes what one process
computes. So does a step that can't be split.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import tensorflow as tf

from syrtos.comm.communicator import ReduceOp
from syrtos.dialects.estimator import hooks
from syrtos.dialects.estimator.graphs import GraphScope
from syrtos.keras.split import comparison, first_batch, verdicts
from syrtos.keras.split.checks import Checks
from syrtos.keras.split.plan import SplitPlan
from syrtos.keras.split.trial_step import Assigned, StepOutcome

v1: Any = tf.compat.v1

# Operations whose results are random, by the beginnings of their types' names; each has the result as its first output.
_DRAWS = tuple(
    state + kind
    for state in ("", "Stateless", "Stateful", "Parameterized")
    for kind in ("Random", "TruncatedNormal", "Multinomial", "Uniform", "Standard")
)
_NORMALIZES = ("FusedBatchNorm",)
_MOST_ELEMENTS = 1_000_000  # of a sparse gradient, or of a variable that is not trained, that is compared
_COMPUTES = "Rank 0 computes"  # the whole batch
_Feed = Mapping[Any, Any]


class Comparing(v1.train.SessionRunHook):
    """Computes some steps both ways before they count, in a session of their own, and feeds those that can't be split."""

    def __init__(
        self, scope: GraphScope, what: str, kind: str, loss: Any, train_op: Any = None, metrics: Mapping[str, tuple[Any, Any]] | None = None,
        known: tuple[SplitPlan, Checks] | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            scope: the step, whose graph is being built.
            what: its name for a person.
            kind: ``train_step`` or ``test_step``.
            loss: the loss of all workers' rows, as `graphs.over_all` makes it.
            train_op: the training operation.
            metrics: the value and the update of each metric.
            known: what earlier graphs of the same function have shown.
        """
        self.plan, self.checks = known or (SplitPlan(), Checks())
        self._scope, self._what, self._kind = scope, what, kind
        self._loss, self._train_op, self._metrics = loss, train_op, dict(metrics or {})
        self._samples: Any = scope.samples  # in a graph tensors are keys of what is fed
        self._trial: _Trial | None = None

    def begin(self) -> None:
        """Makes the operations that comparisons need, before the graph is final."""
        session = self._scope.session
        self._whole = self._scope.rows_of_all(self._scope.data)
        self._rows, self._all_rows = (
            [leaf for leaf in tf.nest.flatten(tree, expand_composites=True) if isinstance(leaf, tf.Tensor)]
            for tree in (self._scope.data, self._whole)
        )
        if session.options.verify == "off" or self.plan.whole:
            self.checks.end()
        elif self._kind == "train_step" and _normalizes(v1.get_default_graph()):
            self.checks.end()
            _tell_own_statistics(self._scope)
        else:
            self._trial = _Trial(self._scope, self._loss, self._train_op, self._metrics)

    def before_run(self, run_context: Any) -> Any:
        """Compares what the next step computes, if that is due, and returns what the step is fed with."""
        session = run_context.session
        is_due = self.checks.is_due() and self._trial is not None
        self.checks.count(1)
        if not is_due and not self.plan.whole:
            return v1.train.SessionRunArgs(None, self._ways())
        *own, samples = session.run([*self._rows, self._samples])
        share: dict[Any, Any] = {**dict(zip(self._rows, own, strict=True)), self._samples: samples}
        batch = self._on_rank_0(session, share)
        if is_due and self._trial is not None:
            self._check(self._trial.on(session, share, batch))
        if self._scope.session.options.verify == "only" and self.checks.steps >= verdicts.Verifying.CALLS:
            run_context.request_stop()
        return v1.train.SessionRunArgs(None, batch if self.plan.whole else {**share, **self._ways()})

    def end(self, session: Any) -> None:
        """Closes the session of comparisons."""
        if self._trial is not None:
            self._trial.close()

    def _ways(self) -> dict[Any, Any]:
        return self._scope.ways(self.plan) if self.plan.tried else {}

    def _on_rank_0(self, session: Any, share: _Feed) -> dict[Any, Any]:
        """Returns what each worker is fed with, so that all rows are rank 0's."""
        comm = self._scope.session.comm
        rows = session.run(self._all_rows, share)
        samples = comm.allreduce(np.asarray([share[self._samples]]), ReduceOp.SUM)[0]
        if comm.rank:
            return {**share, self._samples: np.float32(0.0)}
        return {**dict(zip(self._rows, rows, strict=True)), self._samples: samples}

    def _check(self, trial: _Trial) -> None:
        began, session, is_first = time.monotonic(), self._scope.session, not self.plan.tried
        if is_first:
            first_batch.decide(self.plan, trial, session)
        elif not first_batch.confirm(self.plan, trial, session):
            other = self.plan.renewed()
            first_batch.decide(other, trial, session)
            self.plan.adopt(other)
            verdicts.tell_change(self.plan, session, self._what, self.checks.steps, _COMPUTES)
        if not self.plan.whole and not _is_possible(self.plan):
            self.plan.whole = "no sum or mean over the workers makes of their numbers those of the batch"
        if is_first or self.plan.whole:
            verdicts.tell(self.plan, session, self._what, _COMPUTES)
        if is_first and session.options.verify == "only":
            verdicts.Verifying.note(self.plan, session, "model_fn", self._kind, comparison.bound_of(4))
        self.checks.note_check(session.comm, time.monotonic() - began, few_rows=False)
        if self.plan.whole:
            self.checks.end()


def _is_possible(plan: SplitPlan) -> bool:
    """Returns whether a graph can be fed so that it does what the plan says."""
    return not plan.variables and all((key, rule) == (0, "sum") for key, rule in plan.logs.items())


class _Trial:
    """A step in a session of its own, with the values of the session that trains: it leaves no trace there."""

    def __init__(self, scope: GraphScope, loss: Any, train_op: Any, metrics: Mapping[str, tuple[Any, Any]]) -> None:
        self._scope, self._graph = scope, v1.get_default_graph()
        self._variables = hooks.Values(v1.global_variables())
        self._totals = hooks.metric_totals()
        self._begin = v1.local_variables_initializer()
        self._tables = [op for op in v1.get_collection(v1.GraphKeys.TABLE_INITIALIZERS) if op.type != "MakeIterator"]
        self._updates = tf.group(*(update for _, update in metrics.values()))
        self._gradients = {name: _dense(gradient) for name, gradient in scope.reduced}
        self._numbers = {"loss": loss, **{name: value for name, (value, _) in metrics.items()}}
        self._state = [] if train_op is None else _untrained(v1.global_variables())
        self._train_op = train_op if self._state else tf.no_op()
        fetched = [*self._gradients.values(), *self._numbers.values(), self._updates, self._train_op]
        drawn = _draws(fetched, {id(leaf) for leaf in tf.nest.flatten(scope.data, expand_composites=True)})
        self._draws = [(tensor, tf.shape(tensor), tf.reduce_max(tensor)) for tensor in drawn]
        self._session: Any = None

    def on(self, session: Any, share: _Feed, batch: _Feed) -> Self:
        """Takes the values of a session that trains, and a batch: how it is split, and how it is whole."""
        if self._session is None:
            self._session = v1.Session(graph=self._graph)
            self._session.run(self._tables)
        self._values = self._variables.read(session)
        self._share, self._batch = share, batch
        self._reset()
        largest = self._session.run([largest for _, _, largest in self._draws], share)
        self._largest = self._scope.session.comm.broadcast_object(largest)
        return self

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    # -- as `StepTrial` says ---------------------------------------------------------------------

    def whole(self, all_rows: bool) -> StepOutcome:
        del all_rows  # they always are
        found = self._outcome(self._batch, {})
        for one in found.assigned.values():
            one.after = self._scope.session.comm.broadcast_object(one.after)  # others have a row that does not count
        return found

    def split(self, plan: SplitPlan) -> StepOutcome:
        return self._outcome(self._share, self._scope.ways(plan))

    def with_more_rows(self) -> None:
        return None

    def backwards(self) -> Self:
        return self  # a maximum is not among the ways to combine numbers here

    def precision(self) -> int:
        return 4

    # -- helpers ---------------------------------------------------------------------------------

    def _outcome(self, rows: _Feed, ways: _Feed) -> StepOutcome:
        try:
            return self._run({**rows, **ways})
        except tf.errors.OpError as error:
            return StepOutcome(error=f"{type(error).__name__}: {error.message.splitlines()[0]}")

    def _run(self, feed: dict[Any, Any]) -> StepOutcome:
        session = self._session
        self._reset()
        shapes = session.run([shape for _, shape, _ in self._draws], feed)
        for (tensor, _, _), shape, largest in zip(self._draws, shapes, self._largest, strict=True):
            feed[tensor] = np.full(shape, largest)
        totals = self._totals.read(session)
        fetched = [list(self._gradients.values()), self._numbers["loss"], self._scope.own_loss, self._updates]
        gradients, loss, own_loss, _ = session.run(fetched, feed)
        if not feed[self._scope.samples]:
            self._totals.write(session, totals)
        self._totals.reduce(session, ReduceOp.SUM)
        metrics = session.run([value for name, value in self._numbers.items() if name != "loss"])
        nothing = np.zeros(0)  # of no shape that a rule could be found for
        return StepOutcome(
            gradients=gradients,
            gradient_names=list(self._gradients),
            logs=[loss, *metrics],
            log_names=list(self._numbers),
            own_logs=[own_loss, *(nothing for _ in metrics)],
            assigned=self._assigned(feed),
        )

    def _assigned(self, feed: _Feed) -> dict[int, Assigned]:
        if not self._state:
            return {}
        before = self._session.run(self._state)
        self._session.run(self._train_op, feed)
        after = self._session.run(self._state)
        pairs = zip(self._state, before, after, strict=True)
        return {id(v): Assigned(v.op.name, b, a) for v, b, a in pairs}

    def _reset(self) -> None:
        self._session.run(self._begin)
        self._variables.write(self._session, self._values)


def _dense(gradient: Any) -> Any:
    """Returns a gradient as one tensor; the sum of its values, where a sparse one would be large."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    shape = tf.get_static_value(gradient.dense_shape) if gradient.dense_shape is not None else None
    if shape is None or np.prod(shape) > _MOST_ELEMENTS:
        return tf.reduce_sum(gradient.values, axis=0)
    return tf.convert_to_tensor(gradient)


def _untrained(variables: Sequence[Any]) -> list[Any]:
    """Returns those variables that a script may assign by itself: not those of optimizers, nor moving statistics."""
    trained = {v.op.name for v in v1.trainable_variables()}

    def is_other(variable: Any) -> bool:
        name = variable.op.name
        ours = name in trained or any(name.startswith((f"{one}/", f"{one}_")) for one in trained)
        return not (ours or hooks.is_moving(name) or name.endswith(("_power", "global_step", "seed_generator_state")))

    return [v for v in variables if is_other(v) and (v.shape.num_elements() or _MOST_ELEMENTS) < _MOST_ELEMENTS]


def _draws(fetched: Sequence[Any], fed: set[int]) -> list[Any]:
    """Returns the random tensors that the fetched ones are computed from."""
    waiting = [one if isinstance(one, tf.Operation) else one.op for one in fetched]
    seen, found = set[int](), []
    while waiting:
        operation = waiting.pop()
        if id(operation) in seen:
            continue
        seen.add(id(operation))
        if operation.type.startswith(_DRAWS) and (
            operation.outputs[0].dtype.is_floating or operation.outputs[0].dtype.is_integer
        ):
            found.append(operation.outputs[0])
        inputs = [tensor for tensor in operation.inputs if id(tensor) not in fed]
        waiting += [*(tensor.op for tensor in inputs), *operation.control_inputs]
    return found


def _normalizes(graph: Any) -> bool:
    """Returns whether a step of the graph normalizes by statistics of its own rows."""
    return any(hooks.is_moving(v.op.name) for v in v1.global_variables()) or any(
        operation.type.startswith(_NORMALIZES) for operation in graph.get_operations()
    )


def _tell_own_statistics(scope: GraphScope) -> None:
    ledger = scope.session.ledger
    if not ledger.told.get("own_statistics"):
        ledger.say(own_statistics="model_fn")
        if scope.session.world.rank == 0:
            print(
                "syrtos: the batch normalization of `model_fn` uses mean and variance of each worker's share of a batch while it trains, so the results "
                "differ from those of one process, and no batch was computed both ways.",
                flush=True,
            )
