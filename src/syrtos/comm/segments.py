"""Memory that the workers of one host share, each through a mapping of its own.

It lives as long as an array looks at it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from collections.abc import Callable, Iterator

from mpi4py import MPI

from syrtos.errors import SharedMemoryError

_FOLDER = "/dev/shm"


def create(comm: MPI.Comm, nbytes: int) -> memoryview:
    """Returns zeros that all workers of ``comm``, on one host, can write to. All call it together.

    Raises:
        SharedMemoryError: the workers can't share so much memory.
    """
    # First without a name, which could be left behind: a worker makes the memory (memfd_create(2)),
    # and the others open it through that process. Where they can't, as workers in containers of
    # their own that share /dev/shm, it is a file there that is removed as soon as all have opened
    # it.
    for attempt in (_create_unnamed, _create_named):
        with attempt(comm, nbytes) as descriptor:
            mapped = _map_memory(descriptor, nbytes)
            # All workers take the same way: the next one if it failed at any of them.
            if comm.allreduce(int(mapped is not None), MPI.MIN):
                assert mapped is not None
                return memoryview(mapped)
    raise SharedMemoryError(
        f"The exchange needs {nbytes / 1e6:.0f} MB of memory that the {comm.Get_size()} workers of"
        " this host share, and it could not be made: they may not open each other's files in"
        " /proc, and /dev/shm is not shared by them or too small. Give it more (`mount -o"
        " remount,size=8G /dev/shm`; docker: `--shm-size=8g`; Kubernetes: an emptyDir with medium"
        " Memory), or exchange in smaller groups with `--bucket-mb`."
    )


def _map_memory(descriptor: int, nbytes: int) -> mmap.mmap | None:
    if descriptor < 0:
        return None
    try:
        return mmap.mmap(descriptor, nbytes)
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _create_unnamed(comm: MPI.Comm, nbytes: int) -> Iterator[int]:
    descriptor = (
        _make_file(lambda: os.memfd_create("syrtos-exchange"), nbytes, reserve=False)
        if comm.Get_rank() == 0
        else -1
    )
    process, number, identity = comm.bcast((os.getpid(), descriptor, _identity(descriptor)))
    if comm.Get_rank() and number >= 0:
        descriptor = _open_file(f"/proc/{process}/fd/{number}")
        # the number is that of another process where containers number their own from 1 alike
        if descriptor >= 0 and _identity(descriptor) != identity:
            os.close(descriptor)
            descriptor = -1
    yield from _closing(descriptor)


@contextlib.contextmanager
def _create_named(comm: MPI.Comm, nbytes: int) -> Iterator[int]:
    path = comm.bcast(f"{_FOLDER}/syrtos-{secrets.token_hex(8)}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = (
        _make_file(lambda: os.open(path, flags, 0o600), nbytes, reserve=True)
        if comm.Get_rank() == 0
        else -1
    )
    # The file must be there before the others open it.
    comm.Barrier()
    if comm.Get_rank():
        descriptor = _open_file(path)
    # It is removed only once all have opened it.
    comm.Barrier()
    if comm.Get_rank() == 0:
        with contextlib.suppress(OSError):
            os.unlink(path)
    yield from _closing(descriptor)


def _make_file(make: Callable[[], int], nbytes: int, reserve: bool) -> int:
    """Returns the descriptor of a new file of ``nbytes`` bytes; -1 if there is no room.

    With ``reserve`` its pages are taken at once.
    """
    try:
        descriptor = make()
        if reserve:
            # The system ends a process by SIGBUS that writes to a page for which a file system has
            # no room.
            os.posix_fallocate(descriptor, 0, nbytes)
        else:
            os.ftruncate(descriptor, nbytes)
    except OSError:
        return -1
    return descriptor


def _identity(descriptor: int) -> tuple[int, int, int] | None:
    if descriptor < 0:
        return None
    stat = os.fstat(descriptor)
    return stat.st_dev, stat.st_ino, stat.st_size


def _open_file(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1


def _closing(descriptor: int) -> Iterator[int]:
    """Yields a descriptor and closes it afterwards."""
    try:
        yield descriptor
    finally:
        if descriptor >= 0:
            # A mapping needs the descriptor of its file no more.
            os.close(descriptor)
