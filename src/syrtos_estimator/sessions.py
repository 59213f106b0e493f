"""The sessions that run an Estimator's graphs, with the files that rank 0 writes beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from syrtos.comm.world import Session
from syrtos_estimator import graphs, hooks
from syrtos_estimator.partitioned import PartitionedGraph

if TYPE_CHECKING:
    from syrtos_estimator.config import RunConfig
    from syrtos_estimator.protocols import GraphSession, MonitoredSession, Scaffold
    from syrtos_estimator.specs import EstimatorSpec

v1 = tf.compat.v1


def scaffold_of(spec: EstimatorSpec, config: RunConfig) -> Scaffold:
    """Returns a training graph's scaffold, with a saver by the settings if the script made none."""
    scaffold = spec.scaffold or v1.train.Scaffold()
    if scaffold.saver is None and not v1.get_collection(v1.GraphKeys.SAVERS):
        keep, hours = config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours
        saver = v1.train.Saver(
            max_to_keep=keep,
            keep_checkpoint_every_n_hours=hours,
            defer_build=True,
            save_relative_paths=True,
        )
        v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
    return scaffold


def train(
    workers: Session,
    config: RunConfig,
    scaffold: Scaffold,
    all_hooks: list[object],
    fetches: list[object],
    partition: PartitionedGraph | None,
) -> None:
    """Trains until a hook or the data stops it.

    ``fetches``: the number of this worker's samples, and the training operation.
    """
    # The others get rank 0's variables by `BeginEqual`, and need not see its files.
    reads = config.model_dir if workers.world.rank == 0 else None
    creator = v1.train.ChiefSessionCreator(
        scaffold, config=config.session_config, checkpoint_dir=reads
    )
    with v1.train.MonitoredSession(_with_partition(creator, partition), all_hooks) as session:
        graphs.train(session, workers.ledger, fetches)


def hooks_of_chief(
    config: RunConfig, loss: tf.Tensor, spec: EstimatorSpec, rank: int
) -> list[object]:
    """Returns the hooks that only rank 0 has: those that write files, and the chief's."""
    # All workers build the same graph: they compute together what rank 0 writes.
    v1.summary.scalar("loss", loss)
    merged = v1.summary.merge_all() if config.save_summary_steps else None
    if rank:
        return []
    found = [*(spec.training_chief_hooks or ())]
    if config.log_step_count_steps:
        found.append(
            v1.train.StepCounterHook(config.log_step_count_steps, output_dir=config.model_dir)
        )
    if config.save_summary_steps:
        found.append(
            v1.train.SummarySaverHook(
                config.save_summary_steps, output_dir=config.model_dir, summary_op=merged
            )
        )
    return found


def open_checkpoint(
    config: RunConfig,
    spec: EstimatorSpec,
    checkpoint: str | None,
    all_hooks: Sequence[object],
    rank: int,
    partition: PartitionedGraph | None = None,
) -> MonitoredSession:
    """Returns a session with the variables of a checkpoint, which rank 0 must be able to read."""
    # With `BeginEqual` the others get rank 0's variables.
    equal = any(isinstance(hook, hooks.BeginEqual) for hook in all_hooks)
    path = checkpoint if rank == 0 or not equal else None
    creator = v1.train.ChiefSessionCreator(
        spec.scaffold or v1.train.Scaffold(),
        config=config.session_config,
        checkpoint_filename_with_path=path,
    )
    return v1.train.MonitoredSession(_with_partition(creator, partition), all_hooks)


class _PartitioningCreator(v1.train.SessionCreator):
    """Creates sessions whose runs are partitioned."""

    def __init__(self, creator: Any, partition: PartitionedGraph) -> None:
        self._creator, self._partition = creator, partition

    def create_session(self) -> GraphSession:
        """Returns a new session."""
        self._partition.prepare()
        return self._partition.install(self._creator.create_session())


def _with_partition(creator: Any, partition: PartitionedGraph | None) -> Any:
    return _PartitioningCreator(creator, partition) if partition else creator


def write_summary(folder: str, results: Mapping[str, Any]) -> None:
    """Writes the metrics of an evaluation for TensorBoard; rank 0 calls it."""
    summary = v1.Summary()
    for key, value in results.items():
        if key != "global_step" and np.ndim(value) == 0:
            summary.value.add(tag=key, simple_value=float(value))
    with tf.Graph().as_default(), v1.summary.FileWriter(folder) as writer:
        writer.add_summary(summary, int(results["global_step"]))
    values = ", ".join(f"{key} = {value}" for key, value in sorted(results.items()))
    v1.logging.info("Saving dict for global step %d: %s", int(results["global_step"]), values)
