"""`syrtos check`: says in half a minute whether this machine trains on several workers."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console

from syrtos import settings
from syrtos.cli.verify import add_workers, differs, refuse_one_worker
from syrtos.doctor import machine
from syrtos.doctor.machine_check import Check, ok, wrong

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

_NAME = "training"
_PATIENCE = 180.0  # seconds: frameworks are imported for the first time


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "check",
        help="check this machine, and train a small network on workers, in half a minute",
        description=(
            "Check this machine as `syrtos doctor` does: packages, memory, network, and MPI between"
            " two workers. Then train a small network with the backend that KERAS_BACKEND names, and"
            " compare it with one process. The exit code is 1 where something is wrong."
        ),
    )
    add_workers(parser)
    parser.set_defaults(main=main)


def main(chosen: argparse.Namespace) -> int:
    """Prints a line for each check and the verdict, and returns the exit code.

    Raises:
        ConfigurationError: fewer than two workers are asked for.
    """
    refuse_one_worker("check", chosen.workers)
    console = Console(stderr=True, highlight=False)
    with console.status("Looking at this machine ..."):
        checks = machine.check()
    if not any(check.status == "wrong" for check in checks):
        # what was found so far would make it fail
        with console.status(f"Training a small network on {chosen.workers} workers ..."):
            checks.append(_train(settings.environment(), chosen.workers))
    machine.show(checks)
    in_the_way = [check.name for check in checks if check.status == "wrong"]
    if in_the_way:
        print(f"This machine can't train on several workers yet: {', '.join(in_the_way)}.")
        return 1
    print(f"This machine trains on several workers: `syrtos run -n {chosen.workers} train.py`.")
    return 0


def _train(env: Mapping[str, str], workers: int) -> Check:
    """Trains a small network by `syrtos verify`, on the backend that ``env`` chooses."""
    module = ("-m", "syrtos.keras.small_training")
    command = [sys.executable, "-m", "syrtos", "verify", "--json", "-n", str(workers), *module]
    try:
        ended = subprocess.run(
            command, env=dict(env), capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return _no_training(workers, f"did not end within {_PATIENCE:.0f} s")
    lines = [line for line in ended.stdout.splitlines() if line.startswith('{"model"')]
    # Of a step that every worker computes whole nothing would be shown.
    functions = [function for line in lines if not (function := json.loads(line))["whole"]]
    rows = [(row, function) for function in functions for row in function["rows"]]
    worst = max((row["difference"] for row, _ in rows), default=0.0)
    if any(differs(row, function) for row, function in rows):
        return _no_training(workers, f"computed other numbers than one process, by {worst:.0e}")
    if ended.returncode or not rows:
        last = ended.stderr.strip().splitlines()
        return _no_training(workers, f"failed: {last[-1] if last else 'it said nothing'}")
    return ok(
        _NAME,
        f"{workers} workers computed what one process does: of {len(rows)} values none differs by"
        f" more than {worst:.0e}",
    )


def _no_training(workers: int, why: str) -> Check:
    return wrong(
        _NAME,
        f"a small network on {workers} workers {why}",
        f"`syrtos verify -n {workers} -m syrtos.keras.small_training` shows all of it.",
    )
