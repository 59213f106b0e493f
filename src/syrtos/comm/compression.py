"""`--compress`: gradients travel in fewer bytes.

The part of a gradient that a worker has not sent is added to what it sends next. That is error
feedback (Seide et al. 2014; Karimireddy et al. 2019, arXiv:1901.09847), without which the rarer
methods do not converge. The codecs:

- ``bf16``, ``fp16``: numbers of 16 bits, half the bytes; they are summed in float32.
- ``powersgd:R``: matrices of rank R in the place of each gradient of two or more dimensions (Vogels
  et al. 2019, arXiv:1905.13727, algorithm 2).
- ``auto``: ``bf16`` where a link between hosts is slow enough for it to pay, which is measured;
  else none.

Only gradients of known variables are compressed, of float32: never metrics, statistics, or values
of a script's own.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np

from syrtos.comm import fusion, world
from syrtos.comm.arrays import Array
from syrtos.comm.communicator import Communicator
from syrtos.errors import ConfigurationError
from syrtos.records import read_record, record_of

# Numbers by which `auto` measures a link, and how often.
_PROBE = 1 << 20
_PROBES = 3


@dataclasses.dataclass
class ErrorMemory:
    """The state that is kept for one variable from one exchange to the next.

    Attributes:
        residual: the part that was not sent yet, in the shape of the gradient.
        basis: for PowerSGD, the right factor of the last approximation, shape (columns, rank).
        before: residual and basis before the last exchange, where its update may yet be left out.
    """

    residual: Array
    basis: Array | None = None
    before: tuple[Array, Array | None] | None = None


Kind = Literal["gradient", "change"]


class _VariableRecord:
    """The record of a variable: what is remembered of it, by what is exchanged."""

    def __init__(self) -> None:
        self.memories: dict[Kind, ErrorMemory] = {}


def weighted_mean(
    comm: Communicator,
    arrays: Sequence[Array],
    weight: float,
    variables: Sequence[Any] = (),
    lend: bool = False,
    kind: Kind = "gradient",
) -> list[Array]:
    """Averages gradients over all workers, by the codec that the run asked for.

    See `Communicator.weighted_sum` for the exchange.

    Args:
        comm: the workers.
        arrays: arrays of one dtype; the same shapes on every worker.
        weight: this worker's share of the step. A worker with weight 0 adds nothing, whatever its
            arrays hold.
        variables: the variables that the gradients are of, as the framework holds them; without
            them nothing is compressed.
        lend: whether the averages may be memory that other workers look at too.
        kind: whether the arrays are gradients, or changes of the variables.
    """
    session = world.current()
    codec = choose_codec(comm, variables) if arrays[0].dtype == np.float32 else None
    if codec is None:
        means = _weighted_sums(comm, arrays, weight, lend)
        # Norms of compressed gradients would be those of what was sent, not of the gradients.
        if kind == "gradient":
            session.ledger.norms.add(arrays, means, weight)
        return means
    memories = [_memory_of(kind, v, a) for v, a in zip(variables, arrays, strict=True)]
    # An update that is not finite is left out then: see `update_is_decided`.
    for memory in memories if session.options.on_nan == "skip" else ():
        memory.before = memory.residual, memory.basis
    # a gradient may be too large for float16: what becomes infinite shows in the result
    with np.errstate(over="ignore", invalid="ignore"):
        sums = codec.mean(comm, arrays, weight, memories)
    return [total.reshape(array.shape) for total, array in zip(sums, arrays, strict=True)]


def mean_in_buckets(
    comm: Communicator, arrays: Sequence[Array], weight: float, variables: Sequence[Any]
) -> list[Array]:
    """Averages changes of variables in buckets of the run's size, as `weighted_mean` does.

    The changes may have any dtypes and sizes.
    """
    results: list[Array] = list(arrays)
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        group = [index for index, array in enumerate(arrays) if array.dtype == dtype]
        for bucket in fusion.plan_of_run([arrays[index].nbytes for index in group]):
            mine = [group[k] for k in bucket]
            owners = [variables[i] for i in mine]
            for index, mean in zip(
                mine,
                weighted_mean(comm, [arrays[i] for i in mine], weight, owners, kind="change"),
                strict=True,
            ):
                results[index] = mean
    return results


def update_is_decided(variables: Sequence[Any], is_made: bool) -> None:
    """Resets the error memories of variables if the last update is not made.

    The memories are then as before the last exchange.
    """
    # Where the update is left out, what was sent for it has had no effect, and what was kept of its
    # gradients must have none.
    for variable in variables:
        memory = read_record(variable, _VariableRecord).memories.get("gradient")
        if memory is not None and memory.before is not None:
            if not is_made:
                memory.residual, memory.basis = memory.before
            memory.before = None


def forget(variables: Sequence[Any]) -> None:
    """Forgets what is remembered of these variables: their training begins anew."""
    for variable in variables:
        read_record(variable, _VariableRecord).memories.clear()


def memories(variables: Sequence[Any]) -> dict[str, Array]:
    """Returns what is remembered of these variables, to be stored."""
    found: dict[str, Array] = {}
    for index, variable in enumerate(variables):
        for kind, memory in read_record(variable, _VariableRecord).memories.items():
            found[f"residual {kind} {index}"] = memory.residual
            found |= {f"basis {kind} {index}": memory.basis} if memory.basis is not None else {}
    return found


def put_back(variables: Sequence[Any], stored: dict[str, Array]) -> None:
    """Puts back what `memories` returned; its arrays may have come back as bytes."""
    for kind, (index, variable) in itertools.product(get_args(Kind), enumerate(variables)):
        residual, basis = (
            stored.get(f"residual {kind} {index}"),
            stored.get(f"basis {kind} {index}"),
        )
        if residual is None:
            continue
        memory = _memory_of(kind, variable, np.zeros(tuple(variable.shape), np.float32))
        memory.residual = residual.view(np.float32).reshape(memory.residual.shape).copy()
        if basis is not None:
            memory.basis = (
                basis.view(np.float32)
                .reshape(memory.residual.size // _rows(memory.residual), -1)
                .copy()
            )


def _memory_of(kind: Kind, variable: Any, array: Array) -> ErrorMemory:
    memories = record_of(variable, _VariableRecord).memories
    if kind not in memories:
        memories[kind] = ErrorMemory(np.zeros_like(array))
    return memories[kind]


# -- codecs ----------------------------------------------------------------------------------------


class Codec(abc.ABC):
    """A way in which float32 arrays travel."""

    @abc.abstractmethod
    def mean(
        self,
        comm: Communicator,
        arrays: Sequence[Array],
        weight: float,
        memories: Sequence[ErrorMemory],
    ) -> list[Array]:
        """Returns the average over the workers by ``weight``, equal on all of them.

        Each result has as many numbers as its array, in any shape.
        """


class Half(Codec):
    """A codec of numbers of 16 bits."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)

    def mean(
        self,
        comm: Communicator,
        arrays: Sequence[Array],
        weight: float,
        memories: Sequence[ErrorMemory],
    ) -> list[Array]:
        sent = []
        for array, memory in zip(arrays, memories, strict=True):
            wanted = array + memory.residual
            sent.append(self._round(wanted))
            # A worker without samples has sent nothing, as its weight is 0: what it owes waits.
            if weight:
                wanted -= sent[-1].astype(np.float32)
                memory.residual = _finite(wanted)
        sums, _ = comm.weighted_sum([part.reshape(-1) for part in sent], weight)
        return [total.astype(np.float32) for total in sums]

    def _round(self, wanted: Array) -> Array:
        """Rounds to 16 bits; a finite number out of their range becomes the largest in it."""
        # the rest is sent later
        largest = ml_dtypes.finfo(self._dtype).max.astype(np.float32)
        rounded = np.clip(wanted, -largest, largest).astype(self._dtype)
        infinite = np.isinf(wanted)
        rounded[infinite] = wanted[infinite]
        return rounded


class PowerSGD(Codec):
    """A codec that sends an approximation of low rank of each matrix.

    Each exchange makes one step of a power iteration that goes on from exchange to exchange.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def mean(
        self,
        comm: Communicator,
        arrays: Sequence[Array],
        weight: float,
        memories: Sequence[ErrorMemory],
    ) -> list[Array]:
        low = [self._is_smaller(array) for array in arrays]
        wanted = [
            (a + m.residual).reshape(_rows(a), -1)
            for a, m, is_low in zip(arrays, memories, low, strict=True)
            if is_low
        ]
        kept = [memory for memory, is_low in zip(memories, low, strict=True) if is_low]
        bases = [self._basis(memory, matrix) for memory, matrix in zip(kept, wanted, strict=True)]
        # These would not become smaller: they travel as they are, in the same exchange as the left
        # factors.
        exact = [array for array, is_low in zip(arrays, low, strict=True) if not is_low]
        left = [matrix @ basis for matrix, basis in zip(wanted, bases, strict=True)]
        means = _weighted_sums(comm, [*exact, *left], weight)
        exact, left = means[: len(exact)], [np.linalg.qr(part)[0] for part in means[len(exact) :]]
        right = _weighted_sums(
            comm, [matrix.T @ part for matrix, part in zip(wanted, left, strict=True)], weight
        )
        found = iter(exact)
        approximations = iter([part @ basis.T for part, basis in zip(left, right, strict=True)])
        for memory, matrix, part, basis in zip(kept, wanted, left, right, strict=True):
            # The sum is equal on all workers, so all keep the basis or none does.
            is_finite = bool(np.isfinite(basis).all())
            memory.basis = basis if is_finite else None
            if weight and is_finite:
                memory.residual = (matrix - part @ basis.T).reshape(memory.residual.shape)
        return [next(approximations) if is_low else next(found) for is_low in low]

    def _is_smaller(self, array: Array) -> bool:
        rows = _rows(array)
        return array.ndim > 1 and self._rank * (rows + array.size // rows) < array.size

    def _basis(self, memory: ErrorMemory, matrix: Array) -> Array:
        """Returns the basis of the last exchange; at first random numbers, equal on all workers."""
        if memory.basis is None or memory.basis.shape != (matrix.shape[1], self._rank):
            # The same numbers on all workers, whose products with it are summed.
            memory.basis = (
                np.random.default_rng(0)
                .normal(size=(matrix.shape[1], self._rank))
                .astype(np.float32)
            )
        return memory.basis


def _finite(residual: Array) -> Array:
    """Returns a residual whose numbers that are not finite are set to 0, in place."""
    # They have been seen, and would otherwise be in every later exchange.
    return np.nan_to_num(residual, copy=False, nan=0.0, posinf=0.0, neginf=0.0)


def _rows(array: Array) -> int:
    """Returns the number of rows of the matrix that an array is taken for.

    The last axis is that of the columns: in kernels, of the outputs.
    """
    return max(int(np.prod(array.shape[:-1])), 1)


def _weighted_sums(
    comm: Communicator, arrays: Sequence[Array], weight: float, lend: bool = False
) -> list[Array]:
    if not arrays:
        return []
    sums, _ = comm.weighted_sum([array.reshape(-1) for array in arrays], weight, lend)
    return [total.reshape(array.shape) for total, array in zip(sums, arrays, strict=True)]


# -- the choice ------------------------------------------------------------------------------------


_CODECS: dict[str, Callable[[str], Codec]] = {
    "bf16": lambda _: Half(ml_dtypes.bfloat16),
    "fp16": lambda _: Half(np.float16),
    "powersgd": lambda rank: PowerSGD(int(rank)),
}


def codec_of(text: str) -> Codec | None:
    """Returns the codec that a text of `--compress` names.

    It is None for ``none``, and for ``auto`` before that is measured.
    """
    name, _, number = text.partition(":")
    return _CODECS[name](number) if name in _CODECS else None


def choose_codec(comm: Communicator, variables: Sequence[Any]) -> Codec | None:
    """Returns the codec by which float32 gradients of these variables travel, or None.

    None means that the gradients travel as they are.
    """
    session = world.current()
    options = session.options
    if options.compress == "none" or not variables or comm.size == 1:
        return None
    everyone = comm.size == session.world.size
    # `auto` measures the network, which all workers do together: never for a part of them
    return session.part(_CodecOfRun).codec if everyone or options.compress != "auto" else None


class _CodecOfRun:
    """The codec of a session, which is chosen by all workers together when it is first asked for.

    Raises:
        ConfigurationError: the option can't be used on these hosts.
    """

    def __init__(self, session: world.Session) -> None:
        asked = session.options.compress
        codec = _measure_codec(session) if asked == "auto" else codec_of(asked)
        if isinstance(codec, PowerSGD) and not session.same_processors:
            raise ConfigurationError(
                "`--compress powersgd` multiplies matrices on each worker, and the hosts have"
                " processors of different kinds, whose last bits differ: the replicas would"
                " diverge. Use bf16."
            )
        measured = "bf16" if codec else "none"
        session.ledger.say(compress=measured if asked == "auto" else asked)
        self.codec = codec


def _measure_codec(session: world.Session) -> Codec | None:
    """Returns ``bf16`` if gradients arrive earlier that way, else None."""
    codec = Half(ml_dtypes.bfloat16)
    if session.world.node_count == 1:
        reason = "all workers share the memory of one host"
        chosen = None
    else:
        array, memory = np.ones(_PROBE, np.float32), ErrorMemory(np.zeros(_PROBE, np.float32))
        plain = _seconds(session.comm, lambda: session.comm.weighted_sum([array], 1.0))
        coded = _seconds(session.comm, lambda: codec.mean(session.comm, [array], 1.0, [memory]))
        reason = f"4 MB take {1e3 * plain:.1f} ms, and {1e3 * coded:.1f} ms as bf16"
        chosen = codec if coded < plain else None
    if session.world.rank == 0:
        print(
            f"syrtos: gradients travel {'as bf16' if chosen else 'as they are'}: {reason}",
            file=sys.stderr,
        )
    return chosen


def _seconds(comm: Communicator, exchange: Any) -> float:
    """Returns the seconds of the shortest of some exchanges, as the slowest worker has seen it."""
    times = []
    for _ in range(_PROBES):
        comm.barrier()
        began = time.perf_counter()
        exchange()
        times.append(time.perf_counter() - began)
    return max(comm.agree("seconds of an exchange", min(times)))
