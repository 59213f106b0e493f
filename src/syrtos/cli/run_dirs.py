"""The run directory that a command works on: the given one, or the newest in the folder `runs`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from syrtos.errors import ConfigurationError
from syrtos.launch.spec import newest_run_dir


def add_run_dir(parser: argparse.ArgumentParser) -> None:
    """Adds the argument RUN_DIR, which may be left out."""
    parser.add_argument(
        "run_dir",
        type=Path,
        nargs="?",
        metavar="RUN_DIR",
        help="its run directory (default: the newest in `runs`)",
    )


def find_run_dir(given: Path | None) -> Path:
    """Returns the absolute path of the given run directory, or of the newest one for None.

    The newest one is named on standard error.

    Raises:
        ConfigurationError: none was given, and the folder `runs` has none.
    """
    if given is not None:
        return absolute(given)
    newest = newest_run_dir()
    if newest is None:
        raise ConfigurationError(
            f"No run directory was named, and {Path('runs').absolute()} holds none. Name the folder"
            " that `syrtos run` has printed."
        )
    print(f"syrtos: the newest run, {newest}", file=sys.stderr)
    return absolute(newest)


def absolute(path: Path) -> Path:
    """Returns the absolute path of what links lead to; a circle of links leads nowhere."""
    return Path(os.path.realpath(path))
