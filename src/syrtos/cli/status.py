"""`syrtos status`, `logs` and `stop`: show, follow and end a run.

`logs` and `stop` also serve runs that another package knows by their names, as training jobs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from syrtos import entry_points
from syrtos.cli import followed_run
from syrtos.cli.named_runs import NamedRuns, named_runs
from syrtos.cli.run_dirs import absolute, add_run_dir, find_run_dir
from syrtos.errors import ConfigurationError

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

_NEWEST = "the name of a job, or a run directory (default: the newest in `runs`)"


def add_to(commands: Commands) -> None:
    """Adds the subcommands to the parser."""
    parser = commands.add_parser("status", help="say how far a run is, or how it ended")
    parser.set_defaults(main=_print_status)
    add_run_dir(parser)
    parser = commands.add_parser("logs", help="print the output of a training job or of a run")
    parser.set_defaults(main=_print_output)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="follow the output until its end"
    )
    parser.add_argument("name", nargs="?", metavar="JOB|RUN_DIR", help=_NEWEST)
    parser = commands.add_parser(
        "stop",
        help=(
            "stop a training job (SIGTERM, SIGKILL after two minutes) or a run, and wait for the"
            " end of a run"
        ),
    )
    parser.set_defaults(main=_stop)
    parser.add_argument("name", metavar="JOB|RUN_DIR")


def _print_status(chosen: argparse.Namespace) -> int:
    return followed_run.print_status(find_run_dir(chosen.run_dir))


def _print_output(chosen: argparse.Namespace) -> int:
    if chosen.name is None or Path(chosen.name).is_dir():
        return followed_run.print_output(
            find_run_dir(chosen.name and Path(chosen.name)), chosen.follow
        )
    return _others(chosen.name).print_output(chosen.name, chosen.follow)


def _stop(chosen: argparse.Namespace) -> int:
    if Path(chosen.name).is_dir():
        return followed_run.stop(absolute(Path(chosen.name)))
    return _others(chosen.name).stop(chosen.name)


def _others(name: str) -> NamedRuns:
    found = named_runs()
    if found is None:
        raise ConfigurationError(
            f"There is no folder {name!r}. Expected: a run directory, as `runs/TIME`; training jobs"
            f" by name come with a package that has an entry point of {entry_points.NAMED_RUNS}."
        )
    return found
