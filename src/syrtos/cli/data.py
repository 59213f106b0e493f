"""`syrtos data`: shows a data set's size and balance, and checks which records a run trained on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:  # the other commands should start at once
    from syrtos.cli.parsing import Commands
    from syrtos.data.inspect import DataShape
    from syrtos.data.proof import Epoch

_BAR = 30
_FILES_SHOWN = 16


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("data", help="inspect a data set, or verify the records of a run")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    look = actions.add_parser("inspect", help="records, sizes and balance of a data set")
    look.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="files, folders or patterns with *, local or s3://, gs://, az://, http(s)://",
    )
    look.add_argument(
        "-n",
        "--workers",
        type=_count,
        default=2,
        help="number of workers to show the balance for (default: 2)",
    )
    look.add_argument(
        "--batch", type=_count, default=64, help="records per global batch (default: 64)"
    )
    look.set_defaults(main=_inspect)
    check = actions.add_parser(
        "verify", help="verify that each record was trained on exactly once in each epoch"
    )
    check.add_argument("run_dir", type=Path, help="the run directory")
    check.set_defaults(main=_verify)


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {count}")
    return count


def _inspect(chosen: argparse.Namespace) -> int:
    from syrtos.data.cache import default
    from syrtos.data.inspect import inspect

    shape = inspect(chosen.paths, default())
    console = Console(highlight=False)
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    mean = shape.nbytes / max(shape.records, 1)
    facts.add_row("format", shape.kind)
    facts.add_row(
        "records",
        f"{shape.records:,} in {len(shape.groups):,}"
        f" {'classes' if 'class' in shape.kind else 'files'}",
    )
    facts.add_row("size", f"{_bytes(shape.nbytes)}, a record {_bytes(mean)} on average")
    facts.add_row("skew", f"{shape.skew:.2f} (largest / mean)")
    if shape.damaged:
        facts.add_row(
            "damaged",
            f'{shape.damaged:,}: training fails unless `on_bad_record` is "skip" or "quarantine"',
        )
    console.print(facts)
    console.print(_chart(shape))
    console.print(_balance(shape, chosen.workers, chosen.batch))
    return 0


def _chart(shape: DataShape) -> Table:
    """Returns a table of records by file, the largest first."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    largest = sorted(shape.groups, key=lambda group: -group[1])
    for name, count, size in largest[:_FILES_SHOWN]:
        table.add_row(
            name.rsplit("/", 1)[-1], f"{count:,}", _bytes(size), _bar(count, largest[0][1])
        )
    if len(largest) > _FILES_SHOWN:
        rest = largest[_FILES_SHOWN:]
        table.add_row(
            f"{len(rest):,} more", f"{sum(g[1] for g in rest):,}", _bytes(sum(g[2] for g in rest))
        )
    return table


def _balance(shape: DataShape, workers: int, batch: int) -> Table:
    table = Table(
        "records of each of",
        f"{workers} workers",
        "fewest",
        "most",
        "imbalance (slowest vs. mean)",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for name, counts in (
        ("syrtos.data", shape.records_per_worker(workers, batch)),
        ("whole files", shape.by_files(workers)),
    ):
        longer = max(counts) * workers / max(sum(counts), 1) - 1
        table.add_row(
            name, _spread(counts), f"{min(counts):,}", f"{max(counts):,}", f"{longer:.1%}"
        )
    return table


def _spread(counts: Sequence[int]) -> str:
    """Returns a text with a column for each worker, up to 32."""
    marks, most = " ▁▂▃▄▅▆▇█", max(*counts, 1)
    return "".join(marks[round(count / most * 8)] for count in counts[:32]) + (
        "…" if len(counts) > 32 else ""
    )


def _verify(chosen: argparse.Namespace) -> int:
    from syrtos.data.bad_records import left_out
    from syrtos.data.proof import verify

    epochs = verify(chosen.run_dir)
    console = Console(highlight=False)
    for name in dict.fromkeys(epoch.data for epoch in epochs):
        console.print(f"data set {name}")
        console.print(_epochs([epoch for epoch in epochs if epoch.data == name]))
    for bad in left_out(chosen.run_dir):
        place = f"{bad['file']}, offset {bad['offset']}"
        console.print(f"skipped: record {bad['index']}, {place}: {bad['reason']}", soft_wrap=True)
    console.print("The ledgers are consistent; no record was trained on twice in an epoch.")
    return 0


def _epochs(epochs: Sequence[Epoch]) -> Table:
    table = Table(
        "epoch",
        "records",
        "trained on once",
        "left out",
        "steps",
        "workers",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for epoch in epochs:
        state = "all" if epoch.complete else f"{epoch.done:,} so far"
        workers = " → ".join(map(str, epoch.workers))
        table.add_row(
            str(epoch.epoch),
            f"{epoch.records:,}",
            state,
            f"{epoch.left_out:,}",
            f"{epoch.steps:,}",
            workers,
        )
    return table


def _bar(value: float, most: float) -> str:
    return "█" * max(round(value / max(most, 1) * _BAR), int(value > 0))


def _bytes(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"
