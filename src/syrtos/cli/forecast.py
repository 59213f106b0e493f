"""`syrtos forecast`: the time of a step of a finished run with more workers, on other hosts."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from syrtos.cli.run_dirs import add_run_dir, find_run_dir
from syrtos.errors import ConfigurationError
from syrtos.report import forecast, speed
from syrtos.report.forecast import WAYS, Layout, Link, MeasuredStep, with_workers
from syrtos.report.ledger_lines import without_odd_members
from syrtos.run_dir import RunDir
from syrtos.settings import BatchMode

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

_OURS = next(iter(WAYS))


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "forecast",
        usage=(
            "syrtos forecast [RUN_DIR] [-n N ...] [--batch global|per-worker] [--per-host M]"
            " [--gbit G ...] [--latency US] [--json]"
        ),
        help="estimate the time of a step of a finished run with more workers",
        description=(
            "Forecast the time of a step, from a finished run of two workers or more on one host."
            " As in the run, N workers divide its global batch, or each of them has a batch of its"
            " own."
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
        "--batch",
        choices=get_args(BatchMode),
        help=(
            "global: a step has the samples of the run's steps, whatever the number of workers;"
            " per-worker: each worker keeps its number of samples (default: as in the run)"
        ),
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
    run_dir = find_run_dir(chosen.run_dir)
    ran_with = speed.batch_of(without_odd_members(RunDir(run_dir).request()))
    batch = chosen.batch or ran_with
    alone = _one_worker(run_dir) if ran_with == "global" else None
    step = forecast.measured_step(_last_trained_folder(run_dir), alone and alone.step)
    one = alone.step if alone and batch == ran_with else with_workers(step, 1, batch).own
    rows = [
        _row(
            with_workers(step, workers, batch),
            Layout(
                workers,
                -(-workers // (chosen.per_host or step.workers)),
                Link(chosen.latency * 1e-6, gbit * 1e9 / 8),
            ),
            (workers if batch == "per-worker" else 1) * one,
            gbit,
        )
        for gbit in dict.fromkeys(chosen.gbit)
        for workers in dict.fromkeys(chosen.workers)
    ]
    if chosen.json:
        for row in rows:
            print(json.dumps({"step": dataclasses.asdict(step), "batch": batch, **row}))
    else:
        _print(step, rows, _describe_batch(step, batch, alone))
    return 0


def _one_worker(run_dir: Path) -> speed.Speed | None:
    """Returns the speed against a run of one worker, if one was measured and not disturbed."""
    found = speed.find_measured(run_dir)
    return found if found and found.workers == 1 and not found.is_disturbed else None


def _describe_batch(step: MeasuredStep, batch: str, alone: speed.Speed | None) -> str:
    """Returns which batch the workers train, and what is assumed of smaller ones, in words."""
    if batch == "per-worker":
        return (
            f"`--batch per-worker`: each worker has {step.samples:,.0f} samples in a step, so N"
            " workers train N times as many."
        )
    grows = (
        f"by {alone.run}, of one worker"
        if alone
        else "assuming that all computing does; a run with `-n 1` measures it"
    )
    return (
        f"`--batch global`: the workers divide the {step.samples * step.workers:,.0f} samples of a"
        f" step. {_ms(step.own - step.fixed)} of a worker's {_ms(step.own)} ms shrink with its"
        f" samples ({grows})."
    )


def _last_trained_folder(run_dir: Path) -> Path:
    """Returns the folder of the last generation that has trained to the end of a `fit`.

    It is the run's own folder if no generation has.
    """
    folders = RunDir(run_dir).generations() if run_dir.is_dir() else []
    return next((folder for folder in reversed(folders) if forecast.is_measured(folder)), run_dir)


def _row(step: MeasuredStep, place: Layout, alone: float, gbit: float) -> dict[str, Any]:
    """Returns the forecast of a step; one worker takes ``alone`` s for as many samples."""
    seconds = {name: way(step, place) for name, way in WAYS.items()}
    return {
        "gbit": gbit,
        "workers": place.workers,
        "hosts": place.hosts,
        "seconds": seconds,
        "samples_per_second": {
            name: place.workers * step.samples / taken for name, taken in seconds.items()
        },
        "speed": {name: alone / taken for name, taken in seconds.items()},
        "efficiency": {name: alone / taken / place.workers for name, taken in seconds.items()},
    }


def _print(step: MeasuredStep, rows: list[dict[str, Any]], batch: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(
        f"Measured with {step.workers} workers on one host:"
        f" {_ms(step.own + step.waits + step.inside)} ms a step, of which {_ms(step.waits)} in"
        f" waiting for slower workers and {_ms(step.inside)} in exchanging"
        f" {step.gradients / 1e6:,.2f} MB of gradients."
    )
    console.print(batch)
    for gbit in dict.fromkeys(row["gbit"] for row in rows):
        table = Table(
            title=f"{gbit:g} Gbit/s: milliseconds of a step",
            title_justify="left",
            box=None,
            pad_edge=False,
        )
        for name in ("workers", "hosts", "samples/s", "speed", "efficiency", *WAYS):
            table.add_column(name, justify="right")
        for row in (row for row in rows if row["gbit"] == gbit):
            samples, times, efficiency = (
                row[name][_OURS] for name in ("samples_per_second", "speed", "efficiency")
            )
            taken = [_ms(seconds) for seconds in row["seconds"].values()]
            table.add_row(
                f"{row['workers']:,}",
                f"{row['hosts']:,}",
                f"{samples:,.0f}",
                f"{times:.2f}×",
                f"{efficiency:.0%}",
                *taken,
            )
        console.print(table)
    console.print(
        "speed: samples/s against one worker; efficiency: speed divided by the workers; both with"
        f" `{_OURS}`, which is how syrtos exchanges. `ring`: around one ring of all workers;"
        " `sharded`: with --shard-update; `every 32`: with --sync-every 32. Assumes no overlap of"
        " communication and compute. For two hosts, forecasts were within -8 % to +4 % of what was"
        " measured (docs/performance.md)."
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.{0 if seconds >= 0.02 else 1}f}"
