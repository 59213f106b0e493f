"""One compiled step of `fit`, `evaluate` or `predict`, over the devices of all workers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from syrtos.comm import world
from syrtos.comm.communicator import share_of
from syrtos.errors import DataError
from syrtos.keras.jax import distribution

# Global batches between two comparisons of what the workers read, and bytes of each array that are compared.
_COMPARE_EVERY = 64
_COMPARED_BYTES = 1 << 16


def compiled(step: Callable[..., Any], donate_argnums: Any = None, out_shardings: Any = None) -> Callable[..., Any]:
    """In place of `jax.jit` where Keras compiles the steps of a trainer, the script's own ones too.

    Uneven batches are split inside, and outputs (logs, predictions) are gathered: whole on each worker.
    """
    if out_shardings is None:  # no step: several outputs are concatenated
        return jax.jit(step, donate_argnums=donate_argnums)

    def on_all_devices(state: Any, data: Any) -> Any:
        return step(state, distribution.split(data))

    shardings = (distribution.everywhere(), *out_shardings[1:])
    return _Step(jax.jit(on_all_devices, donate_argnums=donate_argnums, out_shardings=shardings))


class _Step:
    """A compiled step that tells the ledger what it did. Workers meet before each call: one that does something else, or is late, is named, where
    XLA's own exchange would wait for ever."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._traced: set[Any] = set()
        self._before: Any = None

    def __call__(self, state: Any, data: Any) -> Any:
        session = world.sharing()
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(data))
        _agree_on_shapes(shapes)
        start, stop = share_of(
            shapes[0][0][0] if shapes and shapes[0][0] else 1, session.world.rank, session.world.size
        )
        session.ledger.count(stop - start)
        with session.ledger.span("compute" if shapes in self._traced else "trace"):
            # One step may run ahead of Python; with more, its time would be found in whatever waits for the device first.
            jax.block_until_ready(self._before)
            self._traced.add(shapes)
            logs, state = self._function(state, data)
            self._before = logs
        return logs, state


def _agree_on_shapes(shapes: Any) -> None:
    comm = world.sharing().comm
    digests = comm.agree("step", float(zlib.crc32(repr(shapes).encode())))
    if len(set(digests)) > 1:
        everyone = comm.allgather_object([list(shape) for shape, _ in shapes])
        raise DataError(
            "Workers read batches of different shapes: "
            + "; ".join(f"rank {rank}: {found}" for rank, found in enumerate(everyone))
            + ". Every worker must read the same global batches."
        )


def drawn(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches as a step takes them: the time they take counts as input."""
    ledger = world.sharing().ledger
    while True:
        with ledger.span("input"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def compared(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches of an adapter, in memory, each the same on all workers.

    Raises:
        DataError: workers read different data.
    """
    comm = world.sharing().comm
    for number, batch in enumerate(batches):
        if number % _COMPARE_EVERY == 0:
            sums = comm.agree("compare input", float(_sum_of(batch)))
            if len(set(sums)) > 1:
                raise DataError(
                    f"Workers read different data in batch {number}. With global batches every worker must read the same batches in the same order. "
                    "Usually the script shuffles with a generator of its own without a seed: give it one."
                )
        yield batch


def _sum_of(batch: Any) -> int:
    checksum = 0
    for leaf in jax.tree.leaves(batch):
        array = np.ascontiguousarray(leaf).reshape(-1)[:_COMPARED_BYTES]
        checksum = zlib.crc32(array.view(np.uint8).data, checksum)
    return checksum
