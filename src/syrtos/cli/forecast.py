"""`syrtos forecast`: the time of a step of a finished run with more workers, on other hosts."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from syrtos.cli.run_dirs import add_run_dir, find_run_dir
from syrtos.errors import ConfigurationError
from syrtos.launch import generations
from syrtos.report import forecast
from syrtos.report.forecast import WAYS, Layout, Link, MeasuredStep

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

_OURS = next(iter(WAYS))


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "forecast",
        usage=(
            "syrtos forecast [RUN_DIR] [-n N ...] [--per-host M] [--gbit G ...] [--latency US]"
            " [--json]"
        ),
        help="what a step of a finished run would take with more workers",
        description=(
            "Forecast the time of a step, from a finished run of two workers or more on one host."
            " Each worker keeps its number of samples: N workers train N times the samples of one"
            " in a step."
        ),
        epilog=(
            "Example: syrtos forecast runs/20261124-101500-1a2b -n 8 64 --per-host 8 --gbit 10 100"
        ),
    )
    add_run_dir(parser)
    parser.add_argument(
        "-n",
        type=int,
        nargs="+",
        dest="workers",
        metavar="N",
        default=[8, 64, 512],
        help="numbers of workers (default: 8 64 512)",
    )
    parser.add_argument(
        "--per-host", type=int, metavar="M", help="workers on each host (default: as in the run)"
    )
    parser.add_argument(
        "--gbit",
        type=float,
        nargs="+",
        metavar="G",
        default=[1.0, 10.0, 100.0],
        help="Gbit/s of a host's link (default: 1 10 100)",
    )
    parser.add_argument(
        "--latency",
        type=float,
        metavar="US",
        default=50.0,
        help="microseconds from one host to another (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print lines of JSON")
    parser.set_defaults(main=main)


def main(chosen: argparse.Namespace) -> int:
    """Prints a row for each link and number of workers.

    Raises:
        ConfigurationError: nothing can be forecast from this run, or a number is not positive.
    """
    per_host = [] if chosen.per_host is None else [chosen.per_host]
    given = {
        "-n": chosen.workers,
        "--per-host": per_host,
        "--gbit": chosen.gbit,
        "--latency": [chosen.latency],
    }
    for name, values in given.items():
        # Written so that NaN is refused too.
        if wrong := [value for value in values if not 0 < value < math.inf]:
            raise ConfigurationError(
                f"`{name}` must be more than 0, and finite. Received: {wrong[0]}."
            )
    step = forecast.measured_step(_last_trained_folder(find_run_dir(chosen.run_dir)))
    rows = [
        _row(
            step,
            workers,
            chosen.per_host or step.workers,
            Link(chosen.latency * 1e-6, gbit * 1e9 / 8),
            gbit,
        )
        for gbit in dict.fromkeys(chosen.gbit)
        for workers in dict.fromkeys(chosen.workers)
    ]
    if chosen.json:
        for row in rows:
            print(json.dumps({"step": dataclasses.asdict(step), **row}))
    else:
        _print(step, rows)
    return 0


def _last_trained_folder(run_dir: Path) -> Path:
    """Returns the folder of the last generation that has trained to the end of a `fit`.

    It is the run's own folder if no generation has.
    """
    folders = generations.all_folders(run_dir) if run_dir.is_dir() else []
    return next((folder for folder in reversed(folders) if forecast.is_measured(folder)), run_dir)


def _row(
    step: MeasuredStep, workers: int, per_host: int, link: Link, gbit: float
) -> dict[str, Any]:
    place = Layout(workers, -(-workers // per_host), link)
    seconds = {name: way(step, place) for name, way in WAYS.items()}
    return {
        "gbit": gbit,
        "workers": workers,
        "hosts": place.hosts,
        "seconds": seconds,
        "samples_per_second": {
            name: workers * step.samples / each for name, each in seconds.items()
        },
        "efficiency": {name: step.own / each for name, each in seconds.items()},
    }


def _print(step: MeasuredStep, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(
        f"Measured with {step.workers} workers on one host:"
        f" {_ms(step.own + step.waits + step.inside)} ms a step, of which {_ms(step.waits)} in"
        f" waiting for slower workers and {_ms(step.inside)} in exchanging"
        f" {step.gradients / 1e6:,.2f} MB of gradients."
    )
    for gbit in dict.fromkeys(row["gbit"] for row in rows):
        table = Table(
            title=f"{gbit:g} Gbit/s: milliseconds of a step",
            title_justify="left",
            box=None,
            pad_edge=False,
        )
        for name in ("workers", "hosts", "samples/s", "efficiency", *WAYS):
            table.add_column(name, justify="right")
        for row in (row for row in rows if row["gbit"] == gbit):
            samples, efficiency = row["samples_per_second"][_OURS], row["efficiency"][_OURS]
            times = [_ms(seconds) for seconds in row["seconds"].values()]
            table.add_row(
                f"{row['workers']:,}",
                f"{row['hosts']:,}",
                f"{samples:,.0f}",
                f"{efficiency:.0%}",
                *times,
            )
        console.print(table)
    console.print(
        f"`{_OURS}` is how syrtos exchanges, to which samples/s and efficiency (the part of a step"
        " in which a worker computes) belong; `ring`: around one ring of all workers; `sharded`:"
        " with --shard-update; `every 32`: with --sync-every 32. Exchanges are taken to hide"
        " behind nothing. Forecasts for two hosts were 8 % too low to 4 % too high"
        " (docs/performance.md)."
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.{0 if seconds >= 0.02 else 1}f}"
