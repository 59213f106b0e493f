"""`syrtos verify` of an Estimator: the first step of a graph, whole and partitioned, is compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tensorflow as tf

from syrtos.comm.world import Session
from syrtos.keras.split import comparison, verdicts
from syrtos.keras.split.comparison import Row
from syrtos_estimator import hooks
from syrtos_estimator.partitioned import PartitionedGraph

if TYPE_CHECKING:
    from syrtos.keras.tensorflow.partition.step import GradientTerms
    from syrtos_estimator.protocols import Feed, GraphSession, RunContext

v1 = tf.compat.v1


class VerifyFirstStep(v1.train.SessionRunHook):
    """Computes the first step both ways before it counts, and ends the run after two."""

    def __init__(
        self,
        workers: Session,
        partition: PartitionedGraph,
        notes: GradientTerms,
        loss: tf.Tensor,
        operation: tf.Operation | tf.Tensor,
        step: str,
    ) -> None:
        """
        Args:
            workers: all of the run.
            partition: of the graph.
            notes: the gradients of its optimizers.
            loss: scalar, compared besides gradients and variables.
            operation: makes the step.
            step: ``train_step`` or ``test_step``.
        """
        self._workers, self._partition, self._step = workers, partition, step
        self._loss, self._operation = loss, operation
        gradients: dict[str, Any] = {
            cast("tf.Variable", v).op.name: reference.deref()
            for reference, v in notes.variables.items()
        }
        self._gradients = {
            name: gradient
            for name, gradient in gradients.items()
            if gradient.graph is v1.get_default_graph()
        }
        self._calls = 0

    def begin(self) -> None:
        """Makes the operations that set variables, before the graph is final."""
        everything = [*v1.global_variables(), *v1.local_variables()]
        self._variables = hooks.GraphVariables({id(v): v for v in everything}.values())

    def before_run(self, run_context: RunContext) -> object:
        """Compares the first step."""
        self._calls += 1
        if self._calls >= verdicts.Verifying.CALLS:
            run_context.request_stop()
        if self._calls > 1:
            return None
        feed = self._partition.next_batch({})
        whole = self._partition.why_whole(feed)
        rows: list[Row] = []
        if not whole:
            rows = list(self._compare(run_context.session, feed))
            whole = self._partition.failure
        bound = comparison.bound_of(2 if self._is_half() else 4)
        verdicts.Verifying.note(
            [] if whole else rows,
            self._workers,
            "model_fn",
            self._step,
            bound,
            whole,
            gathered=self._partition.report.describe_whole(),
        )
        return v1.train.SessionRunArgs(None, feed)

    def _compare(self, session: GraphSession, feed: Feed) -> Iterator[Row]:
        before = self._variables.read(session)
        fetches = [list(self._gradients.values()), self._loss, self._operation]

        def outcome(run: Any) -> tuple[Sequence[Any], Any, Sequence[Any]]:
            gradients, loss, _ = run(fetches, feed)
            after = self._variables.read(session)
            self._variables.write(session, before)
            return gradients, loss, after

        one, together = outcome(self._partition.run_whole), outcome(session.run)
        yield from comparison.compare_gradients(list(self._gradients), one[0], together[0])
        yield comparison.compare_values("log", "loss", one[1], together[1])
        for variable, start, a, b in zip(
            self._variables.variables, before, one[2], together[2], strict=True
        ):
            name = variable.op.name
            if self._follows(name) or not variable.dtype.is_floating or np.array_equal(start, a):
                continue
            yield comparison.compare_values("variable", name, a, b, start)

    def _follows(self, name: str) -> bool:
        """Returns whether a variable follows from gradients, which are compared themselves."""
        # Optimizers name their slots after the variables: `dense/kernel/Adam`.
        return any(f"{one}/" in f"{name}/" for one in self._gradients) or name.endswith("_power")

    def _is_half(self) -> bool:
        halves = (tf.float16, tf.bfloat16)
        return any(gradient.dtype in halves for gradient in self._gradients.values())
