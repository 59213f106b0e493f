"""`syrtos report`: where the time of a run went and what to change, as a page, as text or as JSON.

The report of two runs says what is different.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from syrtos.checkpoint import durable
from syrtos.cli.run_dirs import absolute, find_run_dir
from syrtos.errors import ConfigurationError
from syrtos.launch.run_lock import is_going_on
from syrtos.report import compare, facts, page, text
from syrtos.report.read import RunRecord, load

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

# Seconds between two looks at a run that goes on.
_PAUSE = 3.0


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "report",
        help="show where the time of a run went, and what to change",
        description=(
            "Write a report about a run as one HTML file, RUN_DIR/report.html, and print what it"
            " recommends. Two run directories are compared."
        ),
        epilog="Example: syrtos report runs/20261124-101500-1a2b",
    )
    parser.add_argument(
        "run_dirs",
        type=Path,
        nargs="*",
        metavar="RUN_DIR",
        help="a run directory, or two to compare (default: the newest in `runs`)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the HTML file (default: report.html, or compare.html, in the last RUN_DIR)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--text",
        action="store_true",
        help="print the report as text instead of writing the HTML file",
    )
    form.add_argument("--json", action="store_true", help="print the report as JSON instead")
    form.add_argument(
        "--follow",
        action="store_true",
        help="write the file again every few seconds while the run goes on; the page shows it",
    )
    parser.set_defaults(main=main)


def main(chosen: argparse.Namespace) -> int:
    """Writes or prints the report.

    Raises:
        ConfigurationError: a folder is no run directory, or there are more than two.
    """
    if len(chosen.run_dirs) > 2:
        raise ConfigurationError(
            "`syrtos report` takes one run directory, or two to compare. Received:"
            f" {len(chosen.run_dirs)}."
        )
    run_dirs = [find_run_dir(path) for path in chosen.run_dirs or [None]]
    output = absolute(
        chosen.output or run_dirs[-1] / ("compare.html" if len(run_dirs) > 1 else "report.html")
    )
    console = Console(highlight=False, soft_wrap=True, markup=False)
    runs: list[RunRecord] = []
    try:
        while True:
            began = time.monotonic()
            runs = _load_runs(run_dirs, chosen.follow)
            live = chosen.follow and any(run.goes_on for run in runs)
            _report_once(chosen, runs, output, console, live)
            if not live:
                break
            # long ledgers take long to read
            time.sleep(max(_PAUSE, 5 * (time.monotonic() - began)))
    except KeyboardInterrupt:
        # Ctrl-C is how a person ends `--follow`: the last page is not to read itself again
        if runs and chosen.follow:
            _report_once(chosen, runs, output, console)
    return 0


def _load_runs(run_dirs: list[Path], follow: bool) -> list[RunRecord]:
    """Reads the runs; with ``follow``, waits while runs that go on have written nothing yet."""
    with Console(stderr=True).status("reading ledgers"):
        while True:
            goes_on = [is_going_on(path) for path in run_dirs]
            try:
                return [load(path, going) for path, going in zip(run_dirs, goes_on, strict=True)]
            except ConfigurationError:
                if not (follow and all(goes_on)):
                    raise
            time.sleep(_PAUSE)


def _facts_of(run: RunRecord) -> dict[str, Any]:
    try:
        return facts.of_run(run)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ConfigurationError(
            f"The record in {run.folder} is damaged, and there is no report of it:"
            f" {type(error).__name__}: {error}."
        ) from error


def _report_once(
    chosen: argparse.Namespace,
    runs: list[RunRecord],
    output: Path,
    console: Console,
    live: bool = False,
) -> None:
    found = [_facts_of(run) for run in runs]
    comparison = (
        compare.compare_runs(runs[0], runs[1], (found[0], found[1])) if len(runs) > 1 else None
    )
    if chosen.json:
        everything = found[0] if comparison is None else {"runs": found, "comparison": comparison}
        print(json.dumps(page.finite(everything), allow_nan=False))
        return
    if chosen.text:
        console.print(
            text.report(found[0])
            if comparison is None
            else text.comparison((found[0], found[1]), comparison)
        )
        return
    for each in found:
        # The page links to the trace, by a path from where the page is.
        if each["trace"]:
            each["trace"] = os.path.relpath(
                Path(each["run"]["folder"]) / each["trace"], output.parent
            )
    data = page.page(found, comparison, live).encode()
    try:
        if output.exists() and not output.is_file():
            output.write_bytes(data)  # a FIFO or a device, in whose place no file may come
        else:
            durable.replace(output, data)
    except OSError as error:
        raise ConfigurationError(
            f"{output} can't be written: {error.strerror}. Name another file with `--output`."
        ) from error
    for sentence in runs[-1].missing:
        print(f"syrtos: {sentence}", file=sys.stderr)
    last = found[-1]
    if comparison is not None:
        console.print(comparison["text"], style="bold")
    elif chosen.follow and last["run"]["goes_on"] and not last["steps"]["count"]:
        console.print("no training step yet")
    elif chosen.follow and last["run"]["goes_on"]:
        console.print(
            f"step {last['steps']['count']:,}, {last['steps']['median_ms']:.1f} ms a step,"
            f" {last['samples_per_second']:,.0f} {last['rate_of']}/s"
        )
    else:
        if failure := text.failure_of(last):
            console.print(failure, style="bold red")
        console.print(
            f"recommended: {last['recommended']['text']}"
            if last["recommended"]
            else last["nothing_found"]
        )
    if not chosen.follow or not last["run"]["goes_on"]:
        console.print(f"report: {output}")
