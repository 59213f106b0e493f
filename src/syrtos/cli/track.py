"""`syrtos track`: logs a run to experiment trackers, while it goes on or afterwards."""

from __future__ import annotations

import argparse
import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from syrtos.cli.run_dirs import absolute
from syrtos.cli.watching import TRACKERS
from syrtos.errors import ConfigurationError
from syrtos.launch.run_lock import is_going_on
from syrtos.report import following
from syrtos.run_dir import RunDir

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "track",
        help="log a run to experiment trackers",
        description=(
            "Log parameters, metrics, system figures and the report of a run. `syrtos run --track`"
            " does the same from the start of a run."
        ),
        epilog="Example: syrtos track runs/20261124-101500-1a2b mlflow:http://127.0.0.1:5000",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="its run directory")
    parser.add_argument("trackers", nargs="+", metavar="TRACKER", help=TRACKERS)
    # follow until standard input ends
    parser.add_argument("--until-closed", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(main=main)


def main(chosen: argparse.Namespace) -> int:
    """Logs the run until it has ended.

    Raises:
        ConfigurationError: the folder is no run directory, or a tracker can't be used.
    """
    run_dir = absolute(chosen.run_dir)
    if not RunDir(run_dir).records.is_dir() and not chosen.until_closed:
        raise ConfigurationError(
            f"{run_dir} holds no ledgers. Name the run directory that `syrtos run` printed."
        )
    following.follow(
        run_dir, chosen.trackers, _is_open if chosen.until_closed else lambda: is_going_on(run_dir)
    )
    return 0


def _is_open() -> bool:
    """Returns whether the launcher, which holds the other end of standard input, is there."""
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return not (readable and not sys.stdin.buffer.read1(1))  # type: ignore[attr-defined]
