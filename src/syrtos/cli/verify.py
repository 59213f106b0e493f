"""`syrtos verify`: checks that a script's training computes on N workers what one process does."""

from __future__ import annotations

import argparse
import ast
import collections
import json
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from syrtos import settings
from syrtos.cli import keras_ddp
from syrtos.cli.execution import execute, this_machine
from syrtos.cli.run_request import RunRequest
from syrtos.errors import ConfigurationError
from syrtos.launch.plan import make_plan
from syrtos.launch.policy import RestartPolicy
from syrtos.launch.program import Program, parse
from syrtos.launch.spec import Spec
from syrtos.run_dir import RunDir
from syrtos.settings import Options

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

_WIDTH = 160  # columns, where there is no terminal
# Calls that write files, and characters of one of them.
_WRITES_SHOWN, _LONGEST_CALL = 10, 100


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "verify",
        allow_abbrev=False,
        help="compare a script on N workers with one process, on its first batches",
        description=(
            "Run the first batches of a training script on N workers. Of each train, test and predict"
            " function, the first batch is computed whole, as one process"
            " does, and as the workers do together; gradients, losses, metrics and assigned variables are compared. The exit"
            " code is 1 where any differs by more than 1e-4 (with 16 bits: 5e-2). The script runs"
            " to its end: models that Keras saves, logs and backups of its callbacks are not kept; files"
            " that the script itself writes are, and are named before."
        ),
    )
    parser.set_defaults(main=main)
    add_workers(parser)
    parser.add_argument(
        "--json", action="store_true", help="print a JSON line for each function, with its rows"
    )
    parser.add_argument(
        "--operations",
        action="store_true",
        help=(
            "with TensorFlow: compare each operation on rows with itself on whole tensors, and name"
            " those that differ with the lines of the script"
        ),
    )
    parser.add_argument(
        "--of",
        choices=("syrtos", "keras"),
        default="syrtos",
        help=(
            "what is compared with one process: syrtos, or Keras 3.16's own data parallelism on torch"
            " (DistributedDataParallel), on the first batch of the first `fit`"
        ),
    )
    parser.add_argument(
        "-m",
        action="store_true",
        dest="module",
        help="verify a module instead of a file, as `python -m`",
    )
    parser.add_argument("script", nargs=argparse.PARSER, help="the Python script and its arguments")


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Adds the number of workers that are compared with one process."""
    parser.add_argument(
        "-n",
        type=int,
        dest="workers",
        default=2,
        metavar="N",
        help="number of workers (default: 2)",
    )


def refuse_one_worker(command: str, workers: int) -> None:
    """Refuses to compare one worker with one process.

    Raises:
        ConfigurationError: fewer than two workers are asked for.
    """
    if workers < 2:
        raise ConfigurationError(
            f"`syrtos {command}` compares several workers with one process. Expected: `-n 2` or"
            f" more. Received: -n {workers}."
        )


def main(chosen: argparse.Namespace) -> int:
    """Runs the script, prints the table, and returns the exit code.

    Raises:
        ConfigurationError: fewer than two workers are asked for.
    """
    refuse_one_worker("verify", chosen.workers)
    run_dir = Path(tempfile.mkdtemp(prefix="syrtos-verify-"))
    code = None
    program = parse(["-m", *chosen.script] if chosen.module else chosen.script)
    try:
        spec = Spec(
            program=program,
            workers=chosen.workers,
            options=Options(
                run_dir=str(run_dir), verifies=True, verifies_operations=chosen.operations
            ),
            oversubscribe=True,
        )
        # refused before anything is started
        make_plan(spec, this_machine(spec.hosts), settings.environment())
        _print_writes(program)
        if chosen.of == "keras":
            code = 1
            functions = keras_ddp.compare(program, chosen.workers, run_dir)
            code = 0
        else:
            code = execute(RunRequest(spec, RestartPolicy(0), 0), run_dir)
            functions = list(_functions(run_dir))
    finally:
        # The error of a script that has failed names the logs.
        if not code:
            shutil.rmtree(run_dir, ignore_errors=True)
    if chosen.json:
        for function in functions:
            print(json.dumps(function))
    elif chosen.of == "keras" and not functions:
        print("syrtos: the script called no `fit`: nothing was compared.", file=sys.stderr)
    elif functions or not code:
        _print(functions, chosen.workers, is_whole=not code)
        if chosen.operations and not any(function.get("operations") for function in functions):
            print(
                "No operation was compared by itself: --operations compares those of steps that are"
                " split on TensorFlow."
            )
    return code or int(
        not functions
        or any(differs(row, f) for f in functions if not f["whole"] for row in f["rows"])
    )


def _print_writes(program: Program) -> None:
    """Prints the calls by which the script itself writes files: they are made in the check too."""
    from syrtos.doctor import program as doctor
    from syrtos.doctor.rules.files import own_writes

    try:
        found = [*own_writes(doctor.load(_file_of(program)))]
    except ConfigurationError:
        # The run says what is wrong of the file.
        return
    if not found:
        return
    print(
        "syrtos: the script itself writes files, and this check does not undo it:", file=sys.stderr
    )
    for script, call in found[:_WRITES_SHOWN]:
        text = textwrap.shorten(ast.unparse(call), _LONGEST_CALL, placeholder=" ...")
        print(f"  {script.path}:{call.lineno}  {text}", file=sys.stderr)
    if more := len(found[_WRITES_SHOWN:]):
        print(f"  and {more} more", file=sys.stderr)


def _file_of(program: Program) -> Path:
    """Returns the file of a program, if a module is one of the current folder."""
    if not program.is_module:
        return Path(program.name)
    module = Path(*program.name.split("."))
    return module / "__main__.py" if module.is_dir() else module.with_suffix(".py")


def _functions(run_dir: Path) -> Iterator[Mapping[str, Any]]:
    path = RunDir(run_dir).comparisons
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())


def differs(row: Mapping[str, Any], function: Mapping[str, Any]) -> bool:
    """Returns whether a value of a function is further from one process than rounding explains."""
    return not row["difference"] <= function["bound"]


def _print(functions: list[Mapping[str, Any]], workers: int, is_whole: bool) -> None:
    # What is read by a program or a page has room for the names of variables.
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    if not functions:
        print(
            "syrtos: there was nothing to compare: `fit`, `evaluate` and `predict` of Keras, and"
            " Estimators are looked at, and the script called none of them.",
            file=sys.stderr,
        )
    titles: collections.Counter[str] = collections.Counter()
    for function in functions:
        title = f"{function['model']}.{function['step']}"
        titles[title] += 1
        # E.g. for the data of `evaluate` after that of validation, or after another `compile`.
        title += f", compared again ({titles[title]})" if titles[title] > 1 else ""
        console.print(_table(title, function, workers))
        if operations := function.get("operations"):
            different = sum(row["kind"] == "operation" for row in function["rows"])
            console.print(
                f"{operations} results of operations on rows were compared by themselves:"
                f" {different or 'none'} differ{'s' * (different == 1)}.",
                highlight=False,
            )
        if function["gathered"]:
            console.print(
                f"Each worker computes these operations on gathered rows: {function['gathered']}.",
                highlight=False,
            )
        if function["whole"]:
            console.print(
                f"Not split: {function['whole']}. {function['computes']} the whole batch: results"
                " are right, and training is no faster.",
                highlight=False,
            )
    rows = [
        (row, function)
        for function in functions
        if not function["whole"]
        for row in function["rows"]
    ]
    different = sum(differs(row, function) for row, function in rows)
    if rows:
        worst = max(row["difference"] for row, _ in rows)
        equal = (
            f"All {len(rows)} values are those of one process: the largest difference is"
            f" {worst:.0e}."
        )
        text = (
            f"{different} of {len(rows)} values differ from those of one process."
            if different
            else equal
        )
        style = "bold red" if different else "bold green" if is_whole else ""
        console.print(text, style=style, highlight=False)
    if not is_whole:
        console.print(
            "The script did not come to its end: what it would have called later was not compared.",
            style="bold red",
            highlight=False,
        )


def _table(title: str, function: Mapping[str, Any], workers: int) -> Table:
    """Returns a table with all that was compared of a function, a value in a line."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("", overflow="fold")
    for name in ("one process", f"{workers} workers", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in function["rows"]:
        mark = "[red]" if differs(row, function) and not function["whole"] else ""
        values = (f"{row['whole']:.6g}", f"{row['split']:.6g}", f"{mark}{row['difference']:.0e}")
        table.add_row(row["kind"], escape(row["name"]), *values)
    return table
