"""`syrtos env`: versions and facts about the machine, for a bug report."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from syrtos import __version__, settings, topology

_PACKAGES = ("keras", "tensorflow", "tf_keras", "jax", "torch", "numpy", "mpi4py", "mpich")
# Other variables may hold secrets and are not shown.
_SHOWN = ("PMI_", "OMPI_COMM_WORLD_", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")


def add_to(commands: Any) -> None:
    """Describes the subcommand."""
    parser = commands.add_parser("env", help="print versions and the machine, for a bug report")
    parser.set_defaults(main=main)


def main(_chosen: argparse.Namespace) -> int:
    """Prints one fact to a line."""
    for name, value in facts().items():
        print(f"{name:24} {value}")
    return 0


def facts() -> dict[str, str]:
    """Versions, machine, shared memory and the variables that matter."""
    env = settings.environment()
    started = topology.detect(env)
    found = {"syrtos": __version__, "python": f"{platform.python_version()} ({sys.executable})"}
    found |= versions()
    found |= {
        "system": platform.platform(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.1f} GB",
        "/dev/shm": _shared_memory(),
        "gpus": str(len(list(Path("/proc/driver/nvidia/gpus").glob("*")))),
        "started by": f"{started.starter}, {started.size} workers" if started else "no launcher",
    }
    return found | {name: env[name] for name in sorted(env) if settings.is_harmless(name) or name.startswith(_SHOWN)}


def versions() -> dict[str, str]:
    """Installed versions of the packages that matter, without importing them."""
    return {name: _version(name) for name in _PACKAGES}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def _shared_memory() -> str:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError as error:
        return f"not there ({error.strerror})"
    return f"{stat.f_bavail * stat.f_frsize / 1e9:.1f} GB free"
