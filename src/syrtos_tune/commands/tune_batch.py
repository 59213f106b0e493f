"""`syrtos tune batch`: finds the largest global batch that fits, and the fastest.

It also finds the smallest batch that is as fast as the fastest.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from syrtos.cli.execution import this_machine
from syrtos.errors import ConfigurationError
from syrtos.launch.terminal import output
from syrtos_tune import text
from syrtos_tune.batch import BatchSearch, search
from syrtos_tune.commands import tuning
from syrtos_tune.runner import TrialError

_HEADINGS = (
    "batch",
    "samples/s",
    "ms a step",
    "quartiles",
    "memory a worker",
    "accelerator",
    "note",
)
_STEPS = 20


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the form's options."""
    made = tuning.parser(
        "batch",
        "Find the largest global batch that fits into memory, and the fastest, by short trials of"
        " an unchanged script.",
    )
    made.add_argument("--most", type=int, metavar="B", help="try no larger global batch")
    made.add_argument(
        "--steps",
        type=int,
        default=_STEPS,
        metavar="S",
        help="steps that are measured in each trial (default: %(default)s)",
    )
    tuning.add_script(made)
    return made


def main(arguments: list[str]) -> int:
    """Searches, prints, and returns the exit code: 1 where no batch fits."""
    chosen = parser().parse_args(arguments)
    if chosen.steps < 3 or (chosen.most is not None and chosen.most < chosen.workers):
        raise ConfigurationError(
            "`--steps` must be 3 or more, and `--most` at least the number of workers. Received:"
            f" {chosen.steps} and {chosen.most}."
        )
    spec, run_dir = tuning.spec_of(chosen), tuning.run_dir_of(chosen)
    output.say(f"each trial runs {spec.program.name} up to its first `fit`; results in {run_dir}")
    try:
        result = search(spec, this_machine(), run_dir, chosen.steps, chosen.most, output.say)
    except TrialError as error:
        return tuning.print_end(error)
    if result.stopped:
        if not chosen.json:
            _print_table(result)
        return tuning.print_end(result.stopped, run_dir)
    if result.found is None:
        print(f"syrtos: {text.of_batches(result)[0]}", file=sys.stderr)
        return 1
    tuning.finish(chosen, run_dir, text.batch_facts(result))
    if not chosen.json:
        _print(result)
        print(f"\npicture: {run_dir / tuning.PAGE}")
    return 0


def _print(result: BatchSearch) -> None:
    _print_table(result)
    console = Console(highlight=False, markup=False)
    for sentence in text.of_batches(result):
        console.print(f"\n{sentence}")


def _print_table(result: BatchSearch) -> None:
    rows = text.table(result)
    shown = [k for k in range(len(_HEADINGS)) if any(row[k] for row in rows)]
    made = Table(box=None, pad_edge=False)
    for k in shown:
        made.add_column(
            _HEADINGS[k], justify="left" if _HEADINGS[k] == "note" else "right", overflow="fold"
        )
    for row in rows:
        made.add_row(*(row[k] for k in shown))
    Console(highlight=False, markup=False).print(made)
