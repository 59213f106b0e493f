"""`syrtos tune`: finds the batch size, the learning rate, or other hyperparameters by a search."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

# The file of each form; what is none of these words is the path of a search.
_FORMS = {"batch": "tune_batch", "lr": "tune_lr"}
_SEARCH = "tune_search"


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
    """Calls the file of the form: a batch size, a learning rate or a search."""
    name = _FORMS.get(chosen.form, _SEARCH)
    rest = chosen.rest if chosen.form in _FORMS else [chosen.form, *chosen.rest]
    return importlib.import_module(f"syrtos.cli.{name}").main(rest)
