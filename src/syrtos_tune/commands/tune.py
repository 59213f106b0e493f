"""`syrtos tune`: finds the batch size, the learning rate, or other hyperparameters by a search."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from syrtos import entry_points

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

TITLE = "look before and after"
# Functions of the words behind the command, by the form; what is no form's name is the path of a
# search, whose package may be another.
FORMS = "syrtos.tune_forms"
_SEARCH = "search"
_OURS = ("batch", "lr")


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "tune",
        usage=(
            "syrtos tune batch [...] SCRIPT | syrtos tune lr [...] SCRIPT | syrtos tune [...]"
            " SEARCH.yaml"
        ),
        help="find a batch size, a learning rate or other hyperparameters",
        description=(
            "Find the batch size of a script (`batch`), its learning rate (`lr`), or other"
            " hyperparameters by training jobs (SEARCH.yaml)."
        ),
        epilog=(
            "`syrtos tune batch -h`, `syrtos tune lr -h` and `syrtos tune SEARCH.yaml -h` list"
            " their options."
        ),
    )
    parser.add_argument(
        "form",
        metavar="batch | lr | SEARCH.yaml",
        help="batch size, learning rate, or hyperparameters",
    )
    parser.add_argument(
        "rest",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="options, and the script with its arguments",
    )
    parser.set_defaults(main=main)


def main(chosen: argparse.Namespace) -> int:
    """Calls the function of the form: a batch size, a learning rate or a search.

    Raises:
        ConfigurationError: the form's package can't be imported.
    """
    words = [chosen.form, *chosen.rest]
    if chosen.form not in _OURS:
        return entry_points.load(FORMS, _SEARCH)(words)
    from syrtos_tune.commands import tune_batch, tune_lr

    return {"batch": tune_batch, "lr": tune_lr}[chosen.form].main(chosen.rest)
