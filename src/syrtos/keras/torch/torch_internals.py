"""Every touch on a symbol that torch keeps private, with its reason. Seen to work on torch 2.13.0 on CPUs; NCCL was not seen yet."""

from __future__ import annotations

import datetime
from typing import Any

import torch.distributed

from syrtos import settings
from syrtos.keras import rendezvous


def group_of(device: str, address: str, rank: int, size: int, timeout: float, here: str) -> Any:
    """The workers as torch's own collectives know them: NCCL's where ``device`` is ``cuda``, else gloo's.

    Made without `torch.distributed.init_process_group`: a script, and Keras from 3.16 on, take a process with a default group for one of their
    own distributed training.

    Args:
        device: of the tensors that are exchanged.
        address: of the store at which the workers meet: the path of a file, or ``host:port`` at which rank 0 listens.
        rank: of this worker.
        size: the number of workers.
        timeout: seconds that one exchange may take.
        here: the address of this host at which gloo listens; loopback where all workers are on one.
    """
    one_host = here == rendezvous.LOOPBACK
    host, _, port = address.rpartition(":")
    kinds: Any = torch.distributed
    store = kinds.FileStore(address, size) if one_host else kinds.TCPStore(host, int(port), size, rank == 0)
    if device == "cuda":
        if one_host and "NCCL_SOCKET_IFNAME" not in settings.environment():
            settings.set_environment({"NCCL_SOCKET_IFNAME": "lo"})
        options = kinds.ProcessGroupNCCL.Options()
        options._timeout = datetime.timedelta(seconds=timeout)
        return kinds.ProcessGroupNCCL(store, rank, size, options)
    options = kinds.ProcessGroupGloo._Options()
    options._timeout = datetime.timedelta(seconds=timeout)
    options._devices = [kinds.ProcessGroupGloo.create_device(hostname=here)]
    return kinds.ProcessGroupGloo(store, rank, size, options)
