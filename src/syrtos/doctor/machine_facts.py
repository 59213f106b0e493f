"""Facts about a machine and what is installed on it, for `syrtos env` and `syrtos doctor`. No framework is imported for them."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

Versions = Callable[[str], str]
PACKAGES = ("keras", "tensorflow", "tf_keras", "jax", "torch", "numpy", "mpi4py", "mpich")
# Further names under which TensorFlow is installed.
TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu")
_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # version 1 of cgroups has a number near the highest for memory without a limit


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a container, or a batch system, leaves to this process; None: as much as there is.

    Attributes:
        cores: processor time, in cores.
        memory: bytes.
    """

    cores: float | None
    memory: int | None


def versions() -> dict[str, str]:
    """Installed versions of the packages that matter, ``"-"`` for those that are not there."""
    return {name: version(name) for name in PACKAGES}


def compared() -> dict[str, str]:
    """Versions that are equal on all hosts of a run."""
    return {"python": platform.python_version(), "syrtos": version("syrtos"), **versions()}


def version(name: str) -> str:
    """Of an installed package, found without importing it; ``"-"`` if it is not there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def cores() -> int:
    """Those that this process may use: `syrtos run` starts at most so many workers."""
    return len(os.sched_getaffinity(0))


def memory() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def shared_memory() -> int:
    """Free bytes of /dev/shm.

    Raises:
        OSError: it is not there.
    """
    stat = os.statvfs("/dev/shm")
    return stat.f_bavail * stat.f_frsize


def gpus() -> int:
    """GPUs of NVIDIA's that the driver knows."""
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def limits(root: Path = _CGROUPS, own: str | None = None) -> Limits:
    """The smallest limits of the groups that this process is in (cgroups(7), versions 1 and 2).

    Args:
        root: where the groups are mounted.
        own: the groups of a process, as in /proc/self/cgroup.
    """
    folders = list(_groups(root, Path("/proc/self/cgroup").read_text() if own is None else own))
    quotas = [quota for folder in folders if (quota := _quota(folder)) is not None]
    memories = [
        int(text)
        for folder in folders
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _read(folder / name)).isdigit()
    ]
    return Limits(min(quotas, default=None), min((size for size in memories if size < _UNLIMITED), default=None))


def _groups(root: Path, own: str) -> Iterator[Path]:
    """The folders of all groups, with those that they are in; in a container the outer ones are not there."""
    for number, controllers, path in (line.split(":", 2) for line in own.splitlines()):
        for controller in controllers.split(",") if number != "0" else [""]:
            top = root / controller
            inner = top / path.lstrip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(top))


def _quota(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    quota, period = quota or _read(folder / "cpu.cfs_quota_us"), period or _read(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
