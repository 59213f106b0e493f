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
from syrtos.keras import fitting
from syrtos.keras.jax import distribution, joining

# Global batches between two comparisons of what the workers read.
_COMPARE_EVERY = 64


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


def meeting(function: Callable[..., Any]) -> Callable[..., Any]:
    """A step as workers make it together: one that is not compiled (`run_eagerly`, `jit_compile=False`) too. Of such a step each worker computes uneven
    batches whole."""
    return function if isinstance(function, _Step) else _Step(function)


class _Step:
    """A step whose time and samples the ledger counts. Workers meet before each call: one that does something else, or is late, is named, where
    XLA's own exchange would wait for ever."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._traced: set[Any] = set()
        self._before: Any = None

    def __call__(self, state: Any, data: Any) -> Any:
        joining.Steps.made += 1
        session = world.sharing()
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(data))
        _agree_on_shapes(shapes)
        start, stop = share_of(
            shapes[0][0][0] if shapes and shapes[0][0] else 1, session.world.rank, session.world.size
        )
        session.ledger.count(stop - start)
        with session.ledger.span("compute" if shapes in self._traced else "trace"):
            # The step before must have ended, so that its time counts as computation, and not as that of whatever waits for its results.
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
        if number % _COMPARE_EVERY == 0 or number.bit_count() == 1:  # 0, 1, 2, 4, 8 and so on
            _check_sums(comm.agree("compare input", float(_sum_of(batch))), number)
        yield batch


def check_equal(batch: Any) -> None:
    """Raises DataError where workers were given different batches by hand."""
    arrays = [leaf for leaf in jax.tree.leaves(batch) if getattr(leaf, "shape", None)]
    _check_sums(world.sharing().comm.agree("compare input", float(_sum_of(arrays))), 0)


def _check_sums(sums: list[float], number: int) -> None:
    if distribution.has_own_rows():
        if len(set(sums)) == 1:
            raise DataError(
                f"All workers read the same rows in batch {number}, but the script's distribution says `auto_shard_dataset=False`: that each reads rows of "
                "its own. They would be trained on several times. Leave the argument out, or shard the data by `jax.process_index()`."
            )
    else:
        fitting.check_same_data(sums, number)


def _sum_of(batch: Any) -> int:
    """A checksum of the first, the middle and the last row of each array."""
    checksum = 0
    for leaf in jax.tree.leaves(batch):
        array = np.asarray(leaf)
        picked = array[[0, len(array) // 2, -1]] if array.ndim and len(array) else array
        checksum = zlib.crc32(np.ascontiguousarray(picked).reshape(-1).view(np.uint8).data, checksum)
    return checksum
