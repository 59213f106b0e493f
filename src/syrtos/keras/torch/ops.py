"""Exchanges of torch tensors: those of the native API, and of the gradients of a step.

A tensor on a CPU lends its memory to the exchange; one on another device is copied to the host's
memory, and its result back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import ml_dtypes
import numpy as np
import torch

from syrtos.comm import compression, fusion
from syrtos.comm.communicator import Array, Bounds, Communicator, ReduceOp
from syrtos.errors import ConfigurationError
from syrtos.keras.torch import collectives
from syrtos.keras.trainer import timing


class _ExchangeContext(Protocol):
    """The facts that `_Exchange` keeps between its two passes."""

    exchange_gradient: Callable[..., torch.Tensor]


# -- memory ----------------------------------------------------------------------------------------


def array_of(tensor: torch.Tensor) -> Array:
    """Returns the values in the host's memory, without a copy where they are there already."""
    found = tensor.detach().contiguous().cpu()
    # NumPy has this dtype from `ml_dtypes` alone, which torch does not know: the bits pass as whole
    # numbers.
    if found.dtype is torch.bfloat16:
        return found.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return found.numpy()


def tensor_of(array: Array, like: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of an array on the device of ``like``.

    The array must be nobody else's, or must not be written to.
    """
    # Torch has no tensors that can't be written to, and warns.
    array.flags.writeable = True
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(like.device)
    return torch.from_numpy(array).to(like.device)


# -- ops of the native API: shapes and semantics as in `syrtos.api` --------------------------------


class _Exchange(torch.autograd.Function):
    """An exchange whose gradient is exchanged too."""

    @staticmethod
    def forward(
        ctx: _ExchangeContext,
        value: torch.Tensor,
        exchange: Callable[[Array], Array],
        backward: Callable[..., torch.Tensor],
    ) -> torch.Tensor:
        ctx.exchange_gradient = backward
        return tensor_of(exchange(array_of(value)), value)

    @staticmethod
    def backward(ctx: _ExchangeContext, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.exchange_gradient(*grads), None, None


def allreduce(comm: Communicator, value: torch.Tensor, op: ReduceOp = ReduceOp.SUM) -> torch.Tensor:
    """Reduces a tensor as `syrtos.allreduce` does.

    Differentiable for SUM and MEAN: the gradient is reduced the same way.
    """

    def backward(grad: torch.Tensor) -> torch.Tensor:
        if op not in (ReduceOp.SUM, ReduceOp.MEAN):
            raise ConfigurationError(
                f"An allreduce by {op.value} has no gradient: use the sum or the mean."
            )
        return allreduce(comm, grad, op)

    return _Exchange.apply(value, lambda array: comm.allreduce(array, op), backward)


def allgather(comm: Communicator, value: torch.Tensor) -> torch.Tensor:
    """Gathers rows as `syrtos.allgather` does.

    Differentiable: each worker gets the summed gradient of its own rows.
    """

    def backward(grad: torch.Tensor) -> torch.Tensor:
        rows = len(value) if value.ndim else 1
        # Workers may have given unequal numbers of rows.
        counts = comm.allgather(np.asarray([rows]))
        start = int(counts[: comm.rank].sum())
        return allreduce(comm, grad)[start : start + rows].reshape(value.shape)

    return _Exchange.apply(value, comm.allgather, backward)


def broadcast(comm: Communicator, value: torch.Tensor, root: int = 0) -> torch.Tensor:
    """Broadcasts a tensor as `syrtos.broadcast` does.

    Differentiable: the root gets the summed gradient, the others zero.
    """

    def backward(grad: torch.Tensor) -> torch.Tensor:
        return allreduce(comm, grad) * float(comm.rank == root)

    return _Exchange.apply(value, lambda array: comm.broadcast(array, root), backward)


def reducescatter(
    comm: Communicator, value: torch.Tensor, op: ReduceOp = ReduceOp.SUM
) -> torch.Tensor:
    """Reduces and scatters a tensor as `syrtos.reducescatter` does, without a gradient."""
    return tensor_of(comm.reducescatter(array_of(value), op), value)


def alltoall(
    comm: Communicator, value: torch.Tensor, splits: Sequence[int] | torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Exchanges rows as `syrtos.alltoall` does, without a gradient; the counts are int32."""
    wanted = splits.tolist() if isinstance(splits, torch.Tensor) else splits
    received, counts = comm.alltoall(array_of(value), wanted)
    return tensor_of(received, value), torch.tensor(counts, dtype=torch.int32)


# -- gradients of one step -------------------------------------------------------------------------


def weighted_mean(
    comm: Communicator,
    gradients: Sequence[torch.Tensor],
    weight: float,
    lend: bool = False,
    variables: Sequence[torch.Tensor] = (),
    bounds: Bounds = (),
) -> list[torch.Tensor]:
    """Averages the gradients of one step over all workers.

    The gradients of worker ``r`` are weighted by ``weight[r] / total``.

    Args:
        comm: the workers.
        gradients: dense tensors, in the order of the variables.
        weight: a worker with weight 0 contributes nothing, whatever its gradients hold.
        lend: whether the averages may be memory that other workers look at too: they are not to be
            written to.
        variables: the variables of the gradients, which may be compressed if they are given.
        bounds: for each gradient the bounds of the workers' parts. Each worker then gets its part
            of an average alone, flat, by MPI: see `Communicator.weighted_part_sum`.
    """
    results = list(gradients)
    for bucket in buckets(gradients):
        with timing.exchanging():
            mine = [gradients[i] for i in bucket]
            owners = [variables[i] for i in bucket] if variables else []
            parts = [bounds[i] for i in bucket] if bounds else []
            averages = (
                _parts(comm, mine, weight, parts)
                if parts
                else begin_weighted_mean(comm, mine, weight, lend, owners)()
            )
        for index, tensor in zip(bucket, averages, strict=True):
            results[index] = tensor
    return results


def _parts(
    comm: Communicator, bucket: Sequence[torch.Tensor], weight: float, bounds: Bounds
) -> list[torch.Tensor]:
    parts = comm.weighted_part_sum(
        [array_of(tensor).reshape(-1) for tensor in bucket], bounds, weight
    )
    return [tensor_of(part, tensor) for part, tensor in zip(parts, bucket, strict=True)]


def begin_weighted_mean(
    comm: Communicator,
    bucket: Sequence[torch.Tensor],
    weight: float,
    lend: bool = False,
    variables: Sequence[torch.Tensor] = (),
) -> Callable[[], list[torch.Tensor]]:
    """Begins to average tensors of one dtype that travel together.

    The returned function waits for the averages and returns them.
    """
    is_compressed = (
        bucket[0].dtype is torch.float32 and compression.choose_codec(comm, variables) is not None
    )
    if not is_compressed and collectives.serve(comm, bucket[0]):
        return collectives.begin_weighted_mean(comm, bucket, weight)
    averages = _by_host(comm, bucket, weight, lend, variables)
    return lambda: averages


def _by_host(
    comm: Communicator,
    bucket: Sequence[torch.Tensor],
    weight: float,
    lend: bool,
    variables: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    means = compression.weighted_mean(
        comm, [array_of(tensor) for tensor in bucket], weight, variables, lend
    )
    return [tensor_of(mean, tensor) for mean, tensor in zip(means, bucket, strict=True)]


def buckets(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Groups the indices of tensors that travel together, of one dtype: last variables first."""
    # `backward` comes to the last variables first: their bucket is full while it still makes
    # others.
    kinds = dict.fromkeys(tensor.dtype for tensor in reversed(tensors))
    groups = [
        [i for i in reversed(range(len(tensors))) if tensors[i].dtype is kind] for kind in kinds
    ]
    return [
        [group[k] for k in bucket]
        for group in groups
        for bucket in fusion.plan_of_run([tensors[i].nbytes for i in group])
    ]
