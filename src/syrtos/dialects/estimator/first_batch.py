"""The first batches of a graph: whether its steps on shares compute what one process computes.

A graph is built once, for a worker's share. What comes into it from outside can be fed, though:
rows, their number, random numbers. Where rank 0 is fed the rows of all workers, and the others rows
that do not count, it computes what one process computes. So does a step that can't be split.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from syrtos.comm.communicator import ReduceOp
from syrtos.comm.world import Session
from syrtos.dialects.estimator import deciding
from syrtos.dialects.estimator.checks import Checks
from syrtos.dialects.estimator.graphs import GraphScope
from syrtos.dialects.estimator.plan import SplitPlan
from syrtos.dialects.estimator.trial import GraphTrial
from syrtos.keras.split import comparison, verdicts
from syrtos.keras.tensorflow import input as pipelines
from syrtos.keras.tensorflow import tf_internals_graphs

if TYPE_CHECKING:
    from tensorflow.core.protobuf.config_pb2 import ConfigProto

    from syrtos.dialects.estimator.protocols import Feed, GraphSession, RunContext
    from syrtos.keras.tensorflow.types import BatchLeaf

v1 = tf.compat.v1

_COMPUTES = "Rank 0 computes"  # the whole batch
_NOT_TRIED = "it could not be tried"
Known = tuple[SplitPlan, Checks]


class NeedsStaticRows(Exception):
    """A ``model_fn`` can't be built for batches of any number of rows."""


def has_static_rows(data: object) -> bool:
    """Returns whether a batch's tensors have a static number of rows: no other can be fed."""
    return any(
        leaf.shape.rank and leaf.shape[0] is not None
        for leaf in _with_rows(data)
        if isinstance(leaf, tf.Tensor)
    )


def of_any_rows(data: object) -> object:
    """Returns the same batch, whose tensors may be fed with any number of rows."""

    def forget_row_count(leaf: object) -> object:
        if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
            return leaf
        return v1.placeholder_with_default(leaf, [None, *leaf.shape[1:]])

    return tf.nest.map_structure(forget_row_count, data)


def _with_rows(data: object) -> list[BatchLeaf]:
    return [leaf for leaf in tf.nest.flatten(data) if pipelines.has_rows(leaf)]


class Comparing(v1.train.SessionRunHook):
    """Computes some steps both split and as in one process, before they count.

    These computations have their own session. In steps that can't be split rank 0 is fed all rows.
    """

    def __init__(
        self,
        scope: GraphScope,
        known: Known,
        kind: str,
        loss: tf.Tensor,
        train_op: tf.Operation | None = None,
        metrics: Mapping[str, tuple[object, object]] | None = None,
        config: ConfigProto | None = None,
    ) -> None:
        """
        Args:
            scope: the step, whose graph is being built; its data can be fed with any number of
                rows.
            known: what earlier graphs of the same function have shown, and when they were compared.
            kind: ``train_step`` or ``test_step``.
            loss: the loss of all workers' rows, as `graphs.loss_of_all` makes it.
            train_op: the training operation.
            metrics: the value and the update of each metric.
            config: of sessions.
        """
        self.plan, self.checks = known
        self._scope, self._kind = scope, kind
        self._what = f"`model_fn` in mode {'train' if kind == 'train_step' else 'eval'!r}"
        self._loss, self._train_op, self._metrics, self._config = (
            loss,
            train_op,
            dict(metrics or {}),
            config,
        )
        self._samples: object = scope.samples
        self._trial: GraphTrial | None = None

    def begin(self) -> None:
        """Makes the operations that comparisons need, before the graph is final."""
        if why := self._why_not():
            self.checks.end()
            tell_once(self._scope.session, f"{self._what} is not compared with one process: {why}.")
            return
        leaves = _with_rows(self._scope.data)
        # These exchanges take place in some steps alone. In the step's own order each run of the
        # graph would make them.
        with tf_internals_graphs.exchanges_of_their_own():
            gathered = self._scope.rows_of_all(leaves)
        # Sparse and ragged tensors are fed part by part.
        self._rows: list[object]
        self._all_rows: list[object]
        self._rows, self._all_rows = (
            tf.nest.flatten(tree, expand_composites=True) for tree in (leaves, gathered)
        )
        if not self.plan.reason_not_split:
            self._trial = GraphTrial(
                self._scope, self._loss, self._train_op, self._metrics, self._rows, self._config
            )

    def _why_not(self) -> str:
        """Says why steps of this graph can't be compared; empty if they can."""
        options, trains = self._scope.session.options, self._kind == "train_step"
        if options.verify == "off":
            return "`--verify off` was asked for"
        if any(leaf.shape.rank is None for leaf in _with_rows(self._scope.data)):
            return "the rank of a tensor of its batches is not known"
        if trains and options.compress != "none":
            return "its gradients are compressed"
        if trains and _normalizes(v1.get_default_graph()):
            return (
                "its batch normalization uses mean and variance of each worker's share of a batch"
            )
        reduced = {name for name, _ in self._scope.reduced}
        if trains and not any(v.op.name in reduced for v in v1.trainable_variables()):
            return "a branch of a condition, or an optimizer of its own, makes its gradients"
        return ""

    def before_run(self, run_context: RunContext) -> object:
        """Compares what the next step computes, if that is due, and returns the step's feed."""
        feed = self._feed_of_step(run_context.session)
        self.checks.count(1)
        if (
            self._scope.session.options.verify == "only"
            and self.checks.steps >= verdicts.Verifying.CALLS
        ):
            run_context.request_stop()
        return v1.train.SessionRunArgs(None, feed)

    def _feed_of_step(self, session: GraphSession) -> Feed:
        is_due = self.checks.is_due() and self._trial is not None
        if not is_due and not self.plan.reason_not_split:
            return self._feed_of_plan()
        # What a run takes out of the pipeline no later run gets: the step that counts has to be fed
        # with it.
        *own, samples = session.run([*self._rows, self._samples])
        share: dict[object, npt.ArrayLike] = {
            **dict(zip(self._rows, own, strict=True)),
            self._samples: samples,
        }
        batch = self._feed_of_all_rows(session, share)
        if is_due and self._trial is not None:
            self._check(self._trial, session, share, batch)
        return batch if self.plan.reason_not_split else {**share, **self._feed_of_plan()}

    def _feed_of_plan(self) -> dict[object, bool]:
        # Before the first comparison nothing is fed: the graph's own way holds, by the reduction of
        # its losses.
        return self._scope.ways(self.plan) if self.plan.was_compared else {}

    def _feed_of_all_rows(
        self, session: GraphSession, share: Mapping[object, npt.ArrayLike]
    ) -> dict[object, npt.ArrayLike]:
        """Returns what each worker is fed with, so that all rows are rank 0's."""
        comm = self._scope.session.comm
        rows = session.run(self._all_rows, share)
        samples = comm.allreduce(np.asarray([share[self._samples]]), ReduceOp.SUM)[0]
        if comm.rank:
            return {**share, self._samples: np.float32(0.0)}
        return {**dict(zip(self._rows, rows, strict=True)), self._samples: samples}

    def _check(
        self,
        trial: GraphTrial,
        session: GraphSession,
        share: Mapping[object, npt.ArrayLike],
        batch: Feed,
    ) -> None:
        began, workers, is_first = time.monotonic(), self._scope.session, not self.plan.was_compared
        counts = workers.comm.agree("rows of each worker", float(np.asarray(share[self._samples])))
        # Rows of one worker alone show nothing of how parts combine.
        few = sum(count > 0 for count in counts) < 2
        if not few:
            with trial.on(session, share, batch):
                if trial.is_repeatable():
                    self._compare(trial, is_first)
                else:
                    self.checks.end()
                    tell_once(
                        self._scope.session,
                        f"{self._what} is not compared with one process: it draws random numbers in"
                        " a loop.",
                    )
        self.checks.note_check(workers.comm, time.monotonic() - began, few)
        if self.plan.reason_not_split:
            self.checks.end()

    def _compare(self, trial: GraphTrial, is_first: bool) -> None:
        workers = self._scope.session
        if is_first:
            deciding.decide(self.plan, trial, workers)
        elif not deciding.confirm(self.plan, trial, workers):
            other = self.plan.for_next_comparison()
            deciding.decide(other, trial, workers)
            self.plan.adopt(other)
            tell_change(self.plan, workers, self._what, self.checks.steps + 1, _COMPUTES)
        if self.plan.reason_not_split.startswith(
            _NOT_TRIED
        ):  # as where all rows do not fit into the memory of one worker
            tell_once(
                self._scope.session,
                f"{self._what} is not compared with one process: {self.plan.reason_not_split}.",
            )
            self.plan.reason_not_split = ""
            self.checks.end()
        elif not self.plan.reason_not_split and not _can_follow(self.plan):
            self.plan.reason_not_split = (
                "no sum or mean over the workers makes of their numbers those of the batch"
            )
        if is_first or self.plan.reason_not_split:
            self._tell()
        if is_first and workers.options.verify == "only":
            verdicts.Verifying.note(
                self.plan.rows,
                workers,
                "model_fn",
                self._kind,
                comparison.bound_of(trial.precision()),
                self.plan.reason_not_split,
                _COMPUTES,
            )

    def _tell(self) -> None:
        if self.plan.reason_not_split:
            verdicts.tell(self.plan.reason_not_split, self._scope.session, self._what, _COMPUTES)
        elif self.plan.difference is not None:
            self._scope.session.ledger.say(first_batch=self.plan.difference)


def _can_follow(plan: SplitPlan) -> bool:
    """Returns whether a graph can be fed so that it does what the plan says."""
    # Index 0 is the loss. The numbers after it are metrics, which are added up in any case.
    return not plan.variables and plan.logs.get(0, "sum") == "sum"


def _normalizes(graph: tf.Graph) -> bool:
    """Returns whether a training step normalizes by statistics of its own rows."""
    fused = [
        operation
        for operation in graph.get_operations()
        if operation.type.startswith("FusedBatchNorm")
    ]
    if fused:
        return any("Grad" not in one.type and one.get_attr("is_training") for one in fused)
    names = [v.op.name for v in v1.global_variables()]
    return any(name.endswith(("moving_mean", "moving_variance")) for name in names)


def tell_change(plan: SplitPlan, session: Session, what: str, step: int, computes: str) -> None:
    """Says that a later batch has changed how a step is split; the record of the run has it too."""
    session.ledger.say(changed_at=step)
    if not (plan.reason_not_split or plan.variables or plan.gradients != "mean"):
        return  # a number that it returns becomes a sum, or no sum any more
    if session.world.rank == 0:
        how = (
            f"is not split any more: {plan.reason_not_split}. {computes} the whole batch"
            if plan.reason_not_split
            else "is split in another way"
        )
        print(
            f"syrtos: from step {step:,} on {what} {how}: in this batch the workers would compute"
            " something else than one process. Earlier steps that did, between two comparisons,"
            " may differ from those of one process.",
            file=sys.stderr,
        )


def tell_once(session: Session, text: str) -> None:
    """Says why steps are not compared; the record of the run has it too."""
    if session.world.rank == 0 and session.ledger.told.get("not_compared") != text:
        print(f"syrtos: {text}", file=sys.stderr)
    session.ledger.say(not_compared=text)
