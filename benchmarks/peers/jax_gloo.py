"""Measures JAX on CPU: a jitted `psum` over a mesh of one device per process, through gloo.

Timed is one call, from a device array until its result is ready, on rank 0.
"""

from collections.abc import Callable

import common
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec


def connect(worker: common.Worker) -> Callable[[int], common.Reduce]:
    join(worker)
    mesh = jax.make_mesh((worker.size,), ("workers",))
    split = PartitionSpec("workers")
    all_reduce = jax.jit(
        jax.shard_map(sum_over_workers, mesh=mesh, in_specs=split, out_specs=PartitionSpec())
    )

    def bind(count: int) -> common.Reduce:
        own = np.full(count, worker.rank + 1, np.float32)
        vector = jax.make_array_from_process_local_data(NamedSharding(mesh, split), own)
        return lambda: all_reduce(vector).block_until_ready().addressable_data(0)

    return bind


def join(worker: common.Worker) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(worker.addresses[0], worker.size, worker.rank)


def sum_over_workers(vector: jax.Array) -> jax.Array:
    return jax.lax.psum(vector, "workers")


if __name__ == "__main__":
    common.reduce_peer("jax_gloo", connect)
