"""Exchanges of gradients by torch's own collectives: NCCL on GPUs, gloo on CPUs.

With NCCL gradients never pass through the host's memory.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError
from syrtos.keras import rendezvous
from syrtos.keras.torch import torch_internals

if TYPE_CHECKING:
    from syrtos.keras.torch.torch_internals import CollectiveGroup

_HALVES = (torch.float16, torch.bfloat16)


def serve(comm: Communicator, tensor: torch.Tensor) -> bool:
    """Returns whether torch's collectives exchange a tensor like this.

    They do as the run asks, or by default on GPUs of which each worker has its own. They join all
    workers: between some of them MPI exchanges.

    Raises:
        ConfigurationError: the run asks for them, and two workers use one GPU.
    """
    session = world.current()
    chosen = session.options.exchange
    if chosen == "mpi" or comm is not session.comm:
        return False
    if not tensor.is_cuda:
        return chosen == "framework"
    if chosen == "framework" and not _own_gpus():
        raise ConfigurationError(
            "`--exchange framework` exchanges by NCCL here, which needs a GPU for each worker, and"
            " two workers use one. Leave that option out: workers that share a GPU exchange by MPI."
            " Or start as many workers as GPUs."
        )
    return _own_gpus()


def begin_weighted_mean(
    comm: Communicator, bucket: Sequence[torch.Tensor], weight: float
) -> Callable[[], list[torch.Tensor]]:
    """Begins to average tensors of one dtype over all workers.

    The tensors of worker ``r`` are weighted by ``weight[r] / total``. 16-bit floats are added up in
    float32.

    Returns:
        A function that waits for the averages and returns them: until then a GPU computes on.
    """
    sizes = [tensor.numel() for tensor in bucket]
    # The workers meet over MPI before each exchange: one that calls something else, comes late or
    # has died is named as everywhere.
    weights = comm.agree(f"exchange {bucket[0].dtype} {','.join(map(str, sizes))}", weight)
    total = float(sum(weights))
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
    wide = flat.float() if flat.dtype in _HALVES else flat
    # A worker without samples adds nothing, whatever its gradients hold.
    wide = wide.mul_(weight / total) if weight else torch.zeros_like(wide)
    work = world.part(_Groups).group_on(wide.device.type).allreduce([wide])

    def finish() -> list[torch.Tensor]:
        work.wait()
        parts = wide.to(flat.dtype).split(sizes)
        return [part.reshape(tensor.shape) for part, tensor in zip(parts, bucket, strict=True)]

    return finish


class _Groups:
    """The groups of torch that the workers of a session have joined, one for each kind of device."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._groups: dict[str, CollectiveGroup] = {}

    def group_on(self, device: str) -> CollectiveGroup:
        """Returns the group; at the first exchange all workers join it."""
        if device not in self._groups:
            self._groups[device] = _join(device, self._session)
        return self._groups[device]


def _join(device: str, session: Session) -> CollectiveGroup:
    here = rendezvous.listening_address("torch", session)
    address = session.comm.broadcast_object(_address(here) if session.world.rank == 0 else None)
    place = session.world
    group = torch_internals.group_of(
        device, address, place.rank, place.size, session.options.timeout, here
    )
    group.allreduce([torch.zeros(1, device=device)]).wait()  # connects them
    # The store's folder is removed only after all workers have found each other through it.
    session.comm.agree("joined by torch")
    if here == rendezvous.LOOPBACK and place.rank == 0:
        shutil.rmtree(Path(address).parent, ignore_errors=True)
    if device == "cuda":
        atexit.register(_leave, group, os.getpid())
    session.ledger.say(exchange=f"torch {'nccl' if device == 'cuda' else 'gloo'}")
    return group


def _leave(group: CollectiveGroup, pid: int) -> None:
    """Ends NCCL's part of a process.

    Torch (2.11) prints a warning where a process ends without this call.
    """
    # A forked process runs the functions of `atexit` too, and must leave its parent's group alone.
    if os.getpid() == pid:
        # Others may need what this GPU still sends.
        torch.cuda.synchronize()
        # `shutdown` would wait for workers that have failed.
        group.abort()


def _address(here: str) -> str:
    return (
        f"{rendezvous.folder()}/torch"
        if here == rendezvous.LOOPBACK
        else f"{here}:{rendezvous.free_port(here)}"
    )


@functools.cache
def _own_gpus() -> bool:
    """Returns whether no two workers use one GPU, which NCCL refuses."""
    session = world.current()
    mine = str(
        torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    )  # unique over all hosts
    everyone = session.comm.allgather_object(mine)
    return len(set(everyone)) == len(everyone)
