"""Checks of this machine: cores, memory, shared memory, files, disk, network, clock and GPUs."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from syrtos.doctor import machine_facts
from syrtos.doctor.machine_check import Check, ok, warning, wrong
from syrtos.launch import resources
from syrtos.launch.processes import leftovers

# Bytes that a worker takes before its model is built: an interpreter with Keras and TensorFlow 2.21
# took 0.75 GB.
_WORKER = 0.75e9
# Free bytes of /dev/shm below which there is a word: docker gives a container 64 MiB.
_SHARED = 256e6
_DISK, _LEAST_DISK = 2e9, 100e6
_DESCRIPTORS = 1024  # a launcher has some four for each worker
_SECONDS = 2.0


def checks(folder: Path) -> Iterator[Check]:
    """Yields the checks of this machine. Run directories are made in ``folder``."""
    limits = machine_facts.limits()
    yield cores(machine_facts.cores(), limits.cores)
    yield memory(psutil.virtual_memory().available, _free_below_limit(limits.memory))
    yield shared_memory(machine_facts.shared_memory)
    yield from left_over(leftovers.find_unmapped())
    yield from locked_memory(
        Path("/sys/class/infiniband"), resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    )
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield disk(folder)
    yield network(socket.gethostname())
    yield clock(_clock_is_synchronized())
    yield from gpus(
        resources.nvidia_gpus(), shutil.which("nvidia-smi") is not None, machine_facts.version
    )


def cores(count: int, quota: float | None) -> Check:
    """Checks that a container's processor time, ``quota`` cores, covers its ``count`` cores."""
    if quota is not None and quota < count * 0.95:
        return warning(
            "cores",
            f"{count} cores are seen, and this container gets the time of {quota:.3g}: workers"
            " would wait for each other",
            f"Start at most {max(int(quota), 1)} workers, or give the container whole cores: docker"
            " run --cpuset-cpus, or a higher --cpus.",
        )
    return ok(
        "cores", f"{count} of {os.cpu_count()}: `syrtos run` starts up to {count} workers here"
    )


def _free_below_limit(limit: int | None) -> int | None:
    """Returns the bytes of a memory limit that processes here leave free; None for no limit."""
    used = sum(
        process.info["memory_info"].rss
        for process in psutil.process_iter(["memory_info"])
        if process.info["memory_info"]
    )
    return None if limit is None else max(limit - used, 0)


def memory(available: int, left: int | None) -> Check:
    """Checks the free memory of this machine and of this container.

    ``available`` bytes are free on this machine, and ``left`` bytes in this container. ``left`` is
    None if the container has no limit.
    """
    free = min(available, available if left is None else left)
    found = (
        f"{free / 1e9:.1f} GB"
        f" free{' in this container' if left is not None and left < available else ''}"
    )
    if free < 2 * _WORKER:
        return warning(
            "memory",
            f"{found}: a worker takes {_WORKER / 1e9:.2f} GB before its model is built",
            "End other programs, or start fewer workers.",
        )
    return ok("memory", found)


def shared_memory(free: Callable[[], int]) -> Check:
    """Checks the free bytes of /dev/shm.

    ``free`` returns them. It raises OSError if there is no /dev/shm.
    """
    # MPI needs /dev/shm; the exchange takes its memory elsewhere where it can.
    fix = (
        "docker run --shm-size=8g; Kubernetes: an emptyDir with medium Memory at /dev/shm; else"
        " `mount -o remount,size=8G /dev/shm`."
    )
    try:
        size = free()
    except OSError as error:
        return wrong("/dev/shm", f"it is not there ({error.strerror}), and MPI needs it", fix)
    if size < _SHARED:
        return warning(
            "/dev/shm",
            f"{size / 1e6:.0f} MB free: too little for many workers, or for containers that"
            " share it",
            fix,
        )
    return ok("/dev/shm", f"{size / 1e9:.1f} GB free")


def left_over(paths: Sequence[Path]) -> Iterator[Check]:
    """Yields a warning about shared memory that no process uses any more."""
    if paths:
        size = sum(path.stat().st_size for path in paths if path.exists())
        yield warning(
            "leftovers",
            f"{len(paths)} segments of ended workers take {size / 1e6:.1f} MB of memory",
            "While no run starts: `find /dev/shm -name 'mpich_shm_*' -mmin +1 -delete`.",
        )


def locked_memory(devices: Path, limit: int) -> Iterator[Check]:
    """Yields a warning if RDMA ``devices`` exist and a process may lock only ``limit`` bytes."""
    # RDMA needs memory that is not swapped
    if devices.is_dir() and any(devices.iterdir()) and limit != resource.RLIM_INFINITY:
        yield warning(
            "locked memory",
            f"there are RDMA devices, and a process may lock {limit / 1e6:.0f} MB only: MPI falls"
            " back to TCP, or fails",
            "`ulimit -l unlimited`; for all sessions in /etc/security/limits.conf; docker run"
            " --ulimit memlock=-1.",
        )


def open_files(soft: int, hard: int) -> Check:
    """Checks the limits of a process on open files; a launcher raises the soft limit itself."""
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS:
        return warning(
            "open files",
            f"a process may open {hard}: too few for a launcher of many workers",
            f"`ulimit -Hn {4 * _DESCRIPTORS}` as root, or limits.conf.",
        )
    return ok("open files", f"{soft}, at most {most}")


def disk(folder: Path) -> Check:
    """Checks that run directories can be made in ``folder`` and that its disk has room for them."""
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    fix = "Go to another folder, or name one with --run-dir."
    if not os.access(there, os.W_OK):
        return wrong("run directories", f"{there} can't be written to", fix)
    free = shutil.disk_usage(there).free
    found = f"{free / 1e9:.1f} GB free in {there}"
    if free < _DISK:
        state = wrong if free < _LEAST_DISK else warning
        return state(
            "run directories",
            f"{found}: snapshots take twice the size of weights and optimizer",
            fix,
        )
    return ok("run directories", found)


def network(host: str) -> Check:
    """Checks that loopback ports can be opened and that this machine's name has an address."""
    try:
        with socket.socket() as server, socket.socket() as client:
            server.bind(("127.0.0.1", 0))
            server.listen()
            client.settimeout(_SECONDS)
            client.connect(server.getsockname())
    except OSError as error:
        return wrong(
            "network",
            f"no connection on 127.0.0.1: {error}",
            "`ip link set lo up`, and look at rules of a firewall for loopback.",
        )
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return warning(
            "network",
            f"the name of this machine, {host}, has no address: libraries that look it up wait, or"
            " fail",
            f"Add a line `127.0.1.1 {host}` to /etc/hosts.",
        )
    return ok("network", f"loopback works, {host} is {address}")


def clock(synchronized: bool | None) -> Check:
    """Checks that the clock is ``synchronized``; None if no time service tells."""
    if synchronized is False:
        return warning(
            "clock",
            "it is not synchronized: times in reports differ between hosts, and signed requests to"
            " stores are refused once it is minutes off",
            "`timedatectl set-ntp true`, or start chrony.",
        )
    return ok(
        "clock",
        "synchronized" if synchronized else "no service here tells whether it is synchronized",
    )


def _clock_is_synchronized() -> bool | None:
    told = _program_output("timedatectl", "show", "--property=NTPSynchronized", "--value")
    if told in ("yes", "no"):
        return told == "yes"
    tracking = _program_output("chronyc", "tracking")
    return "Not synchronised" not in tracking if "Leap status" in tracking else None


def _program_output(*command: str) -> str:
    """Returns a program's output; empty if it is missing, fails or takes longer than `_SECONDS`."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def gpus(count: int, has_tool: bool, version: machine_facts.Versions) -> Iterator[Check]:
    """Yields checks of the GPUs and of the packages that use them.

    Args:
        count: number of GPUs that the driver lists.
        has_tool: whether nvidia-smi is on PATH.
        version: returns the version of an installed package.
    """
    if not count and has_tool:
        yield warning(
            "GPUs",
            "nvidia-smi is installed, and the driver shows no GPU to this process",
            "docker run --gpus all; else look at `nvidia-smi` and `dmesg`.",
        )
    elif not count:
        yield ok("GPUs", "none: workers compute on the CPU")
    else:
        yield ok("GPUs", f"{count}: a worker takes one")
        yield from _without_gpus(version)
        if version("nvidia-ml-py") == "-":
            yield warning(
                "GPUs", "their use and memory are not recorded", "`pip install nvidia-ml-py`."
            )


def _without_gpus(version: machine_facts.Versions) -> Iterator[Check]:
    """Yields warnings about builds of frameworks that would leave GPUs idle."""
    cpu_only = {
        "tensorflow": (
            version("tensorflow-cpu") != "-"
            or (
                version("tensorflow") != "-"
                and version("nvidia-cudnn-cu12") == "-" == version("nvidia-cudnn-cu13")
            )
        ),
        "torch": "+cpu" in version("torch"),
        "jax": (
            version("jax") != "-"
            and version("jax-cuda12-plugin") == "-" == version("jax-cuda13-plugin")
        ),
    }
    fixes = {"tensorflow": "tensorflow[and-cuda]", "torch": "torch", "jax": "jax[cuda12]"}
    for name in (name for name, only in cpu_only.items() if only):
        index = " (for torch without `--index-url .../cpu`)" * (name == "torch")
        yield warning(
            "GPUs",
            f"{name} is installed in a build for CPUs: it leaves the GPUs idle",
            f"`pip install '{fixes[name]}'`{index}, if {name} is to use them.",
        )
