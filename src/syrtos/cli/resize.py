"""`syrtos resize`: gives a run that is going on another number of workers."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from syrtos.cli.run import check_may_resize
from syrtos.cli.run_dirs import add_run_dir, find_run_dir
from syrtos.cli.run_request import read_request
from syrtos.errors import ConfigurationError
from syrtos.launch.membership import ask_for
from syrtos.launch.run_lock import is_going_on

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

_PATIENCE = 30.0  # seconds until the launcher has read what is asked for


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "resize",
        help="give a run that is going on another number of workers",
        description=(
            "Give a run that is going on another number of workers: they start again, and go on"
            " from the last committed step with the same global batch. An elastic run has at most"
            " so many from then on."
        ),
    )
    add_run_dir(parser)
    parser.add_argument(
        "-n", type=int, dest="workers", metavar="N", required=True, help="number of workers"
    )
    parser.set_defaults(main=main)


def main(chosen: argparse.Namespace) -> int:
    """Asks the launcher of the run for another number of workers.

    Raises:
        ConfigurationError: nothing runs in the folder, or its launcher refuses.
    """
    run_dir = find_run_dir(chosen.run_dir)
    spec = read_request(run_dir).spec
    options, at_most = spec.options, "at most " * (spec.elastic is not None)
    check_may_resize(options, "`syrtos resize`")
    if not is_going_on(run_dir):
        raise ConfigurationError(
            f"No run is going on in {run_dir}. `syrtos resume {shlex.quote(str(run_dir))} -n"
            f" {chosen.workers}` goes on from its snapshot."
        )
    refusal = ask_for(run_dir, chosen.workers, _PATIENCE, lambda: is_going_on(run_dir))
    if refusal:
        raise ConfigurationError(refusal)
    if refusal is None and not is_going_on(run_dir):
        raise ConfigurationError(f"The run in {run_dir} has ended meanwhile.")
    if refusal is None:
        raise ConfigurationError(
            f"The launcher of the run in {run_dir} has not answered in {_PATIENCE:.0f} s: is this"
            " folder shared with its machine?"
        )
    print(
        f"syrtos: the run in {run_dir} goes on with {at_most}{chosen.workers}"
        f" worker{'s' * (chosen.workers > 1)} once its next step of `fit` is committed."
    )
    return 0
