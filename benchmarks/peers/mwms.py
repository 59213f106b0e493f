"""Measures TensorFlow's MultiWorkerMirroredStrategy: a sum-allreduce over its gRPC ring.

Timed is one call of a `tf.function` from a TF tensor to a TF tensor, on rank 0.
"""

import json
import os
from collections.abc import Callable

import common
import tensorflow as tf


def connect(worker: common.Worker) -> Callable[[int], common.Reduce]:
    strategy = join(worker)

    @tf.function
    def all_reduce(vector: tf.Tensor) -> tf.Tensor:
        return strategy.run(sum_over_workers, args=(vector,))

    def bind(count: int) -> common.Reduce:
        vector = tf.fill([count], float(worker.rank + 1))
        return lambda: all_reduce(vector)

    return bind


def join(worker: common.Worker) -> tf.distribute.Strategy:
    """Join the world of all workers, with one compute thread."""
    one_thread()
    task = {"type": "worker", "index": worker.rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": worker.addresses}, "task": task})
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def one_thread() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def sum_over_workers(vector: tf.Tensor) -> tf.Tensor:
    """The identity copies nothing; it gives the tensor the device that the strategy asks for."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(vector))


if __name__ == "__main__":
    common.reduce_peer("mwms", connect)
