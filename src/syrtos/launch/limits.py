"""Limits of this machine that end workers.

They are room in shared memory, and the limits of setrlimit(2) and of control groups (cgroups(7)).
"""

from __future__ import annotations

import dataclasses
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

_SHARED = "/dev/shm"
# Bytes of shared memory that MPI takes for each worker at least (MPICH 4 with UCX, measured). A
# worker that finds less is ended by SIGBUS.
_MPI_NEEDS = 1_100_000
# Bytes of a file that MPI writes at least; where it may not, it says only that it failed.
_MPI_WRITES = 1 << 23
_FILES_OF_WORKER = 4  # that its launcher has open
_MORE_SHARED = (
    "give it more (docker: `--shm-size=1g`; Kubernetes: an emptyDir with medium Memory at /dev/shm;"
    " else `mount -o remount,size=1G /dev/shm`)"
)
_OPEN_SHARED = "mount it such that this user can (`mount -o remount,rw,mode=1777 /dev/shm`)"
_LARGER_FILES = "raise that with `ulimit -f unlimited`"
_FEW_THREADS = (
    r"can't start new thread|pthread_create|[Rr]esource temporarily unavailable|BlockingIO"
)
_NO_SHARED = r"mpich_shm|/dev/shm|Shared memory error"
_NO_MEMORY = r"MemoryError|bad_alloc|annot allocate memory|failed to map segment|ENOMEM"


def missing_room(workers: int) -> str:
    """Returns a sentence where MPI has too little room for so many workers; else empty."""
    if workers < 2:
        return ""
    if small := _of_user(resource.RLIMIT_FSIZE, "kB of a file", 1024, _MPI_WRITES)():
        return f"{small}, and MPI writes larger ones: {_LARGER_FILES}."
    try:
        stat = os.statvfs(_SHARED)
    except OSError as error:
        return f"MPI needs {_SHARED}, which can't be used: {error.strerror}; {_MORE_SHARED}."
    if closed := _closed_shared():
        return f"MPI needs shared memory. {closed}: {_OPEN_SHARED}."
    free, needed = stat.f_bavail * stat.f_frsize, workers * _MPI_NEEDS
    if free >= needed:
        return ""
    return (
        f"{_SHARED} has {free / 1e6:.1f} MB free, and MPI needs {needed / 1e6:.1f} MB there for"
        f" {workers} workers: {_MORE_SHARED}."
    )


def missing_descriptors(workers: int, running: int) -> str:
    """Returns a sentence where this process may not open the files for so many workers; else empty.

    ``running``: the workers that it has now.
    """
    needed = len(os.listdir("/proc/self/fd")) + _FILES_OF_WORKER * (workers - running)
    if needed <= (most := allow_descriptors(needed)):
        return ""
    return (
        f"The launcher of {workers} workers opens some {needed} files, and this one may open"
        f" {most}: stop the run, and resume it after `ulimit -n {needed}`."
    )


def allow_descriptors(count: int) -> float:
    """Raises this process's limit of open files to ``count``, as far as the system allows.

    Returns:
        The limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return float("inf")
    most = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


def explain(text: str, status: int | None = None) -> str:
    """Returns a sentence about the limits that an error has met; empty where it has met none.

    Args:
        text: the error, or the last lines of a worker's log.
        status: how the worker's process has ended: an exit code, or the negative of a signal.
    """
    found = [limit.sentence() for limit in _LIMITS if limit.is_met(text, status)]
    return " ".join(filter(None, found))


@dataclasses.dataclass(frozen=True)
class _Limit:
    """A limit, and the errors of a process that has met it.

    Attributes:
        words: a pattern of the errors.
        signal: the signal that ends the process in their place; 0: none.
        value: returns the limit in words; empty where there is none.
        remedy: how it is raised, as the end of a sentence.
    """

    words: str
    signal: int
    value: Callable[[], str]
    remedy: str

    def is_met(self, text: str, status: int | None) -> bool:
        by_signal = bool(self.signal) and status in (-self.signal, 128 + self.signal)
        return by_signal or (bool(self.words) and bool(re.search(self.words, text)))

    def sentence(self) -> str:
        value = self.value()
        return f"{value}: {self.remedy}." if value else ""


def _of_user(kind: int, name: str, unit: int = 1, below: float = float("inf")) -> Callable[[], str]:
    """Returns a function that describes a limit of setrlimit(2), where it is below some value."""

    def describe() -> str:
        soft = resource.getrlimit(kind)[0]
        is_low = soft != resource.RLIM_INFINITY and soft < below
        return f"This process is limited to {soft // unit} {name}" if is_low else ""

    return describe


def _closed_shared() -> str:
    """Describes shared memory that can't be written to, e.g. because it is mounted read-only."""
    return "" if os.access(_SHARED, os.W_OK | os.X_OK) else f"{_SHARED} can't be written to"


def _shared_room() -> str:
    if _closed_shared():
        return ""
    try:
        stat = os.statvfs(_SHARED)
    except OSError:
        return ""
    size = stat.f_blocks * stat.f_frsize / 1e6
    return f"Shared memory was probably full: {_SHARED} has {size:.1f} MB in all"


def kills_for_memory() -> int:
    """Returns how many processes Linux has killed for lack of memory since it started (proc(5)).

    Those of control groups that had used up theirs are counted too.
    """
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def describe_kills(before: int) -> str:
    """Returns a sentence about the processes that Linux has killed for lack of memory; else empty.

    ``before``: what `kills_for_memory` returned when the workers were started.
    """
    count = kills_for_memory() - before
    if count < 1:
        return ""
    killed = f"{count} process" + "es" * (count != 1)
    return (
        f"Linux has killed {killed} of this machine for lack of memory since the workers were"
        " started. If this was one of them, use fewer workers or a smaller batch, or raise the"
        " limit of the control group (docker: `--memory`)."
    )


def _most_tasks() -> str:
    """Describes the smallest ``pids.max`` of this process's control groups (cgroups(7))."""
    counts = [int(text) for text in _pids_max() if text.isdigit()]
    return f"The control group is limited to {min(counts)} threads (pids.max)" if counts else ""


def _pids_max() -> Iterator[str]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "pids"):
            continue
        root = Path("/sys/fs/cgroup", controllers)
        inner = root / group.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(root) and (folder / "pids.max").is_file():
                yield (folder / "pids.max").read_text().strip()


_LIMITS = (
    _Limit(_NO_SHARED, signal.SIGBUS, _shared_room, _MORE_SHARED),
    _Limit(_NO_SHARED, signal.SIGBUS, _closed_shared, _OPEN_SHARED),
    _Limit(
        r"File too large|SharedMemoryError",
        signal.SIGXFSZ,
        _of_user(resource.RLIMIT_FSIZE, "kB of a file", 1024),
        _LARGER_FILES,
    ),
    _Limit(
        "",
        signal.SIGXCPU,
        _of_user(resource.RLIMIT_CPU, "s of processor time"),
        "raise that with `ulimit -t unlimited`",
    ),
    _Limit(
        r"Too many open files",
        0,
        _of_user(resource.RLIMIT_NOFILE, "open files"),
        "raise that with `ulimit -n 65536` (docker: `--ulimit nofile=65536`)",
    ),
    _Limit(
        f"{_NO_MEMORY}|{_FEW_THREADS}",
        0,
        _of_user(resource.RLIMIT_AS, "kB of addresses", 1024),
        "raise that with `ulimit -v unlimited`",
    ),
    _Limit(
        _FEW_THREADS,
        0,
        _of_user(resource.RLIMIT_NPROC, "processes and threads of its user", below=65536),
        "raise that with `ulimit -u 65536`",
    ),
    _Limit(
        _FEW_THREADS,
        0,
        _most_tasks,
        "raise that (docker: `--pids-limit=-1`; systemd: `TasksMax=infinity`)",
    ),
)
