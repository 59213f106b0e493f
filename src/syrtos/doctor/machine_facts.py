"""Facts about a machine and its packages, for `syrtos env` and `syrtos doctor`.

No framework is imported for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

from syrtos.launch.worker import interpreters

Versions = Callable[[str], str]
PACKAGES = ("keras", "tensorflow", "tf_keras", "jax", "torch", "numpy", "mpi4py", "mpich")
# Further names under which TensorFlow is installed.
TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu")
_CGROUPS = Path("/sys/fs/cgroup")
# version 1 of cgroups has a number near the highest for memory without a limit
_UNLIMITED = 1 << 60


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits that a container or a batch system sets for this process. None means no limit.

    Attributes:
        cores: processor time, in cores.
        memory: bytes.
    """

    cores: float | None
    memory: int | None


def versions() -> dict[str, str]:
    """Returns the installed versions of `PACKAGES`, ``"-"`` for those that are not installed."""
    return {name: version(name) for name in PACKAGES}


def versions_to_compare() -> dict[str, str]:
    """Returns the versions that must be equal on all hosts of a run."""
    return {"python": platform.python_version(), "syrtos": version("syrtos"), **versions()}


def version(name: str) -> str:
    """Returns a package's version without importing it; ``"-"`` if it is not installed."""
    return interpreters.version(name, absent="-")


def cores() -> int:
    """Returns how many cores this process may use: `syrtos run` starts at most as many workers."""
    return len(os.sched_getaffinity(0))


def memory() -> int:
    """Returns the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def shared_memory() -> int:
    """Returns the free bytes of /dev/shm.

    Raises:
        OSError: /dev/shm does not exist.
    """
    stat = os.statvfs("/dev/shm")
    return stat.f_bavail * stat.f_frsize


def limits(root: Path = _CGROUPS, own: str | None = None) -> Limits:
    """Returns the smallest limits of this process's control groups (cgroups(7), versions 1 and 2).

    Args:
        root: where the groups are mounted.
        own: the groups of a process, in the format of /proc/self/cgroup; None: those of this
            process.
    """
    folders = list(_groups(root, Path("/proc/self/cgroup").read_text() if own is None else own))
    quotas = [quota for folder in folders if (quota := _quota(folder)) is not None]
    memories = [
        int(text)
        for folder in folders
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _read(folder / name)).isdigit()
    ]
    return Limits(
        min(quotas, default=None),
        min((size for size in memories if size < _UNLIMITED), default=None),
    )


def _groups(root: Path, own: str) -> Iterator[Path]:
    """Yields the folders of all groups and of the groups around them.

    The outer ones do not exist in a container.
    """
    for number, controllers, path in (line.split(":", 2) for line in own.splitlines()):
        for controller in controllers.split(",") if number != "0" else [""]:
            top = root / controller
            inner = top / path.lstrip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(top))


def _quota(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    quota, period = (
        quota or _read(folder / "cpu.cfs_quota_us"),
        period or _read(folder / "cpu.cfs_period_us"),
    )
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
