"""XLA's exchanges between processes on CPUs, by the MPI and the shared memory of `syrtos.comm`.

XLA has two kinds: gloo, which takes 0.4 ms for each variable of a model, and any MPI that is given
to it as a library (`xla_library`). What XLA asks of that library ends here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from syrtos.comm import world, xla_library
from syrtos.comm.arrays import Array, ReduceOp
from syrtos.comm.communicator import Communicator
from syrtos.comm.hierarchical import communicator_over
from syrtos.comm.mpi import MPICommunicator
from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError, StalledError

# In the order of the constants in `xla_mpi.c`.
_TYPES = (
    MPI.INT8_T, MPI.UINT8_T, MPI.INT16_T, MPI.UINT16_T, MPI.INT32_T, MPI.UINT32_T, MPI.INT64_T, MPI.UINT64_T, MPI.FLOAT,
    MPI.DOUBLE, MPI.C_FLOAT_COMPLEX, MPI.C_DOUBLE_COMPLEX, MPI.BYTE,
)  # fmt: skip
_DTYPES = (
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64", "complex64",
    "complex128", "uint8",
)  # fmt: skip
_OPERATIONS = (MPI.SUM, MPI.PROD, MPI.MIN, MPI.MAX)
_REDUCTIONS = (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX)
# Bytes of a sum from which memory that the workers of a host share is faster than MPICH.
_LARGE = 1 << 19
_ERROR_BYTES = 1024
_NO_STATUS = 1  # MPICH's MPI_STATUS_IGNORE
_INT, _POINTER, _LONG = ctypes.c_int, ctypes.c_void_p, ctypes.c_int64
_FUNCTIONS = {
    "iallreduce": "MPI_Iallreduce",
    "iallgather": "MPI_Iallgather",
    "ireduce_scatter": "MPI_Ireduce_scatter",
    "isend": "MPI_Isend",
    "irecv": "MPI_Irecv",
    "test": "MPI_Test",
    "comm_rank": "MPI_Comm_rank",
    "comm_size": "MPI_Comm_size",
}
_REDUCE = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _LONG, _INT, _INT, _INT)
_CALLBACKS = {
    "split": ctypes.CFUNCTYPE(_INT, _INT, _INT),
    "wait": ctypes.CFUNCTYPE(_INT, _POINTER),
    "reduce": _REDUCE,
    "reduce_scatter": _REDUCE,
}
# What a function returns after an error, where it is not 1.
_FAILED = {"_split": 0}


class _MPICHTable(ctypes.Structure):
    """The structure `syrtos_mpich` of `xla_mpi.c`."""

    _fields_ = [
        ("rank", _INT),
        ("size", _INT),
        ("types", _INT * 14),
        ("sizes", _INT * 14),
        ("is_complex", _INT * 14),
        ("operations", _INT * 5),
        ("large", _LONG),
        ("exchange_nanoseconds", _LONG),
        ("is_broken", _INT),
        *((name, _POINTER) for name in _FUNCTIONS),
        *_CALLBACKS.items(),
        ("error", ctypes.c_char * _ERROR_BYTES),
    ]


# Why a worker can't exchange by MPI, by the number that it tells the others.
_REASONS = (
    "",
    "it has no C compiler (`cc`), or a jaxlib without MPI, or JAX was imported before syrtos",
    "its MPI is not MPICH",
)


class XLACollectives:
    """The exchanges of XLA in this process, a part of its session: see `Session.part`.

    Attributes:
        lacking: a sentence about a worker that can't exchange by MPI; empty if XLA can: if every
            worker's jaxlib has loaded the library, and its MPI is MPICH.
        is_used: whether XLA exchanges by MPI in this process.
    """

    def __init__(self, session: Session) -> None:
        """Fills in the library that jaxlib has loaded; all workers make this object together."""
        path, mpich = xla_library.find_loaded(), _mpich()
        mine = 1 if path is None else 2 if mpich is None else 0
        reasons = session.comm.agree("exchanges of XLA by MPI", float(mine))
        self.lacking = next(
            (f"rank {rank}: {_REASONS[int(at)]}" for rank, at in enumerate(reasons) if at), ""
        )
        self.is_used, self._told = False, 0
        if self.lacking:
            return
        assert isinstance(session.comm, MPICommunicator)
        assert mpich is not None
        # XLA exchanges while the script's thread does. Its waits are part of a step's time already.
        self._parent = communicator_over(session.comm.comm.Dup(), session.watchdog.another("XLA"))
        self._groups: dict[int, Communicator] = {}
        self._mpich = mpich
        self._table = _MPICHTable.in_dll(ctypes.CDLL(str(path)), "syrtos_mpich")
        self._fill(session)

    def seconds(self) -> float:
        """Returns the seconds that XLA has spent in exchanges since this was asked last."""
        if self.lacking:
            return 0.0
        before, self._told = self._told, self._table.exchange_nanoseconds
        return (self._told - before) / 1e9

    def is_broken(self) -> bool:
        """Returns whether an exchange has been given up, after which XLA makes no more."""
        return not self.lacking and bool(self._table.is_broken)

    def _fill(self, session: Session) -> None:
        table = self._table
        table.rank, table.size, table.large = session.world.rank, session.world.size, _LARGE
        for number, (kind, dtype) in enumerate(zip(_TYPES, _DTYPES, strict=True), 1):
            table.types[number] = MPI._handleof(kind)
            table.sizes[number] = np.dtype(dtype).itemsize
            # Sums of complex numbers are MPICH's, however large.
            table.is_complex[number] = dtype.startswith("complex")
        for number, operation in enumerate(_OPERATIONS, 1):
            table.operations[number] = MPI._handleof(operation)
        for name, function in _FUNCTIONS.items():
            found = ctypes.cast(getattr(self._mpich, function), _POINTER).value
            setattr(table, name, found)
        for name, kind in _CALLBACKS.items():
            setattr(table, name, kind(self._guard(getattr(self, f"_{name}"))))

    def _guard(self, call: Callable[..., int]) -> Callable[..., int]:
        """Wraps a function that C calls: an error is remembered, and becomes C's."""

        @functools.wraps(call)
        def run(*arguments: Any) -> int:
            try:
                with world.remembering_errors():
                    return call(*arguments)
            except BaseException as error:
                text = f"{type(error).__name__}: {error}".encode()[: _ERROR_BYTES - 1]
                self._table.error = text
                return _FAILED.get(call.__name__, 1)

        return run

    def _split(self, color: int, key: int) -> int:
        """Returns MPICH's communicator of the workers that call with this color, by their keys."""
        # By the agreement a worker that does not come is told, in place of an endless wait.
        try:
            self._parent.agree("exchange of XLA between devices", color)
        except StalledError as error:
            raise ConfigurationError(
                "XLA has begun to exchange between devices, and not all workers have come to that:"
                " one of them hangs, or the devices are those of some workers alone (a mesh over a"
                " part of `jax.devices()`), between which XLA can't exchange by MPI. Add"
                " `--exchange framework`, by which gloo does."
            ) from error
        group = communicator_over(self._parent.comm.Split(color, key), self._parent.watchdog)
        handle = _INT(MPI._handleof(group.comm)).value  # MPICH's handles have a sign in C
        self._groups[handle] = group
        return handle

    def _wait(self, request: int) -> int:
        done = _INT()

        def is_done() -> bool:
            self._mpich.MPI_Test(request, ctypes.byref(done), _NO_STATUS)
            return bool(done.value)

        self._parent.watchdog.wait(is_done, "exchange of XLA", self._parent.rank)
        return 0

    def _reduce(
        self, source: int, target: int, count: int, kind: int, operation: int, comm: int
    ) -> int:
        _array(target, count, kind)[:] = self._reduce_parts(source, count, kind, operation, comm)
        return 0

    def _reduce_scatter(
        self, source: int, target: int, count: int, kind: int, operation: int, comm: int
    ) -> int:
        group = self._groups[comm]
        total = self._reduce_parts(source, count * group.size, kind, operation, comm)
        _array(target, count, kind)[:] = total[group.rank * count :][:count]
        return 0

    def _reduce_parts(self, source: int, count: int, kind: int, operation: int, comm: int) -> Array:
        group, part = self._groups[comm], _array(source, count, kind)
        shares = [1.0] * group.size
        return group.reduce_parts([part], _REDUCTIONS[operation - 1], shares, lend=True)[0]


def _mpich() -> ctypes.CDLL | None:
    """Returns the library of MPICH that mpi4py has loaded; None if its MPI is another one."""
    # The numbers of the standard's own ABI, which MPICH has too, are pointers.
    if not MPI.Get_library_version().startswith("MPICH") or MPI._sizeof(MPI.Comm) != 4:
        return None
    for name in ("libmpi.so.12", "libmpich.so.12"):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
            library.MPI_Test.argtypes = [_POINTER] * 3
            return library
    return None


def _array(address: int, count: int, kind: int) -> Array:
    """Returns the elements at an address as an array."""
    dtype = np.dtype(_DTYPES[kind - 1])
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memoryview(memory), dtype)
