"""Measures PyTorch on CPU: `torch.distributed.all_reduce` (sum, in place) through gloo.

Timed is one call on rank 0.
"""

import atexit
import os
from collections.abc import Callable

import common
import torch
from torch import distributed


def connect(worker: common.Worker) -> Callable[[int], common.Reduce]:
    join(worker)

    def bind(count: int) -> common.Reduce:
        vector = torch.full([count], float(worker.rank + 1))
        return lambda: all_reduce(vector)

    return bind


def join(worker: common.Worker) -> None:
    """Join the world of all workers, with one compute thread."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{worker.addresses[0]}",
        world_size=worker.size,
        rank=worker.rank,
    )
    atexit.register(
        distributed.destroy_process_group
    )  # gloo's threads can abort a process that just ends


def all_reduce(vector: torch.Tensor) -> torch.Tensor:
    """In place, so repeats grow the values up to inf, which adds as fast as any number."""
    distributed.all_reduce(vector)
    return vector


if __name__ == "__main__":
    common.reduce_peer("torch_gloo", connect)
