"""Checks of whether this machine and other hosts can run workers: one `Check` for each part."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from syrtos import settings
from syrtos.doctor import (
    machine_environment,
    machine_facts,
    machine_host,
    machine_packages,
    machine_remote,
    machine_world,
)
from syrtos.doctor.machine_check import Check
from syrtos.launch import resources

__all__ = ["Check", "as_json", "check", "show"]

_COLOURS = {"ok": "green", "warning": "yellow", "wrong": "red"}


def check(hosts: Sequence[str] = (), ssh: str = "ssh") -> list[Check]:
    """Checks this machine and ``hosts``, which ``ssh`` reaches.

    No framework is imported. Two MPI workers are started on this machine, and ended.
    """
    env = settings.environment()
    return [*_local_checks(env), *(machine_remote.checks(hosts, ssh, env) if hosts else [])]


def _local_checks(env: Mapping[str, str]) -> Iterator[Check]:
    yield from machine_packages.checks(env)
    yield from machine_environment.checks(env, machine_facts.cores(), resources.gpus())
    yield from machine_host.checks(Path("runs").absolute())
    yield machine_world.check(env)


def as_json(checks: Sequence[Check]) -> list[dict[str, str]]:
    """Returns the checks as dictionaries that JSON can hold."""
    return [dataclasses.asdict(check) for check in checks]


def show(checks: Sequence[Check]) -> None:
    """Prints a line for each check with its fix below, and the counts of failures and warnings."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    width = max(len(check.name) for check in checks)
    for check in checks:
        status = Text(f"{check.status:8}", _COLOURS[check.status])
        console.print(Text.assemble(status, f"{check.name:{width}}  {check.found}"))
        if check.fix:
            console.print(Text(f"{'':8}{'':{width}}  {check.fix}", "dim"))
    counts = collections.Counter(check.status for check in checks)
    told = [f"{counts[status]} {status}" for status in ("wrong", "warning") if counts[status]]
    console.print(f"{', '.join(told)}" if told else "all is well")
