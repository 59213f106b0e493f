"""`syrtos env`: versions and facts about the machine, for a bug report."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from typing import TYPE_CHECKING

from syrtos import settings, topology
from syrtos._version import __version__
from syrtos.doctor import machine_facts
from syrtos.doctor.machine_facts import versions
from syrtos.launch import resources

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

# Other variables may hold secrets and are not shown.
_SHOWN = ("PMI_", "OMPI_COMM_WORLD_", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser("env", help="print versions and the machine, for a bug report")
    parser.set_defaults(main=main)


def main(_chosen: argparse.Namespace) -> int:
    """Prints one fact to a line."""
    for name, value in facts().items():
        print(f"{name:24} {value}")
    return 0


def facts() -> dict[str, str]:
    """Returns versions, facts about the machine, its shared memory and the relevant variables."""
    env = settings.environment()
    started = topology.detect(env)
    found = {"syrtos": __version__, "python": f"{platform.python_version()} ({sys.executable})"}
    found |= versions()
    found |= {
        "system": platform.platform(),
        "cores": f"{machine_facts.cores()} of {os.cpu_count()}",
        "memory": f"{machine_facts.memory() / 1e9:.1f} GB",
        "/dev/shm": _shared_memory(),
        "gpus": str(resources.gpus()),
        "started by": f"{started.starter}, {started.size} workers" if started else "no launcher",
    }
    return found | {
        name: env[name]
        for name in sorted(env)
        if settings.is_harmless(name) or name.startswith(_SHOWN)
    }


def _shared_memory() -> str:
    try:
        return f"{machine_facts.shared_memory() / 1e9:.1f} GB free"
    except OSError as error:
        return f"not there ({error.strerror})"
