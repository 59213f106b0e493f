"""`syrtos resume`: a run goes on from its last snapshot after its launcher, or the machine, was stopped."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from syrtos.cli.execution import execute, read_request


def add_to(commands: Any) -> None:
    """Describes the subcommand."""
    parser = commands.add_parser(
        "resume",
        help="go on with a run that was stopped",
        description="Go on with a run that was stopped, or whose launcher or machine was lost, from its last snapshot: the same script, arguments and "
        "options, in the folder in which it was begun.",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="its run directory")
    parser.set_defaults(main=main)


def main(chosen: argparse.Namespace) -> int:
    """Resumes the run, and returns its exit code."""
    run_dir = chosen.run_dir.resolve()
    return execute(read_request(run_dir), run_dir, resume=True)
