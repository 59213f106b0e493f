"""The screen at the end of a run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from syrtos.report import processors, speed
from syrtos.report.exchanged import is_hidden
from syrtos.report.summary import SHARES, Summary, summarize
from syrtos.run_dir import RunDir

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WORTH_A_WORD = 5.0  # seconds of training
_LONG = 200 << 20  # bytes of ledgers, which take some ten seconds to read
_BAD_SHOWN = 10
_BUSY = 0.9  # of a machine's cores
_WAYS = {
    "planned": "each worker reads its own records",
    "records": "each worker reads all records and prepares its own",
    "sliced": "each worker reads and prepares all records, and takes its rows of each batch",
}
_MOST_KINDS = 4  # of time, in the short form
_WIDTH = 160  # columns, where there is no terminal
_ALWAYS = ("compute", "exchange", "wait", "input", "rest")


def print_summary(run_dir: Path, full: bool = False) -> None:
    """Prints the summary of a run's ledgers; only the run directory if nothing was computed.

    ``full`` adds all kinds of time, and how data were read and weights updated.
    """
    print_table(run_dir, full)
    print(f"run directory: {run_dir}", file=sys.stderr)


def print_table(run_dir: Path, full: bool = False) -> None:
    """Prints the table of all generations of a run, if anything was computed."""
    try:
        _print_table(run_dir, full)
    except Exception as error:
        # a run has ended as it has, whatever its record looks like
        print(
            f"syrtos: no summary, as the record in {run_dir} is damaged: {type(error).__name__}:"
            f" {error}",
            file=sys.stderr,
        )


def _print_table(run_dir: Path, full: bool) -> None:
    folders = RunDir(run_dir).generations()
    summary = summarize(*folders)
    for path in summary.damaged:
        print(
            f"syrtos: {path} is damaged: the summary is without what can't be read.",
            file=sys.stderr,
        )
    if summary.steps or summary.shares["compute"] or summary.shares["evaluation"]:
        # only here: rich takes 45 ms to import, and a run that computes nothing should start and
        # end at once
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
        if not console.is_terminal:
            console.width = _WIDTH
        table = _table(summary, _describe_speed(run_dir, summary), full)
        for text in _busy_machines(folders[-1], summary) if full else ():
            table.add_row("cores", text)
        console.print(table)
        _print_advice(console, run_dir, summary, folders)
        _print_bad_records(console, folders)


def _describe_speed(run_dir: Path, summary: Summary) -> str:
    """Writes down the speed of a run, and returns it in words."""
    try:
        # on a full disk it is printed alone
        with contextlib.suppress(OSError):
            speed.write(run_dir, summary)
        return speed.sentence(run_dir, summary)
    except Exception as error:
        # a run that has ended well stays so, whatever the folders beside it look like
        return f"unknown: {type(error).__name__}: {error}"


def _busy_machines(folder: Path, summary: Summary) -> Iterator[str]:
    """Yields a sentence for each machine whose cores were all busy while the run trained.

    More workers on such a machine gain nothing.
    """
    found = processors.machines(folder)
    for machine in found:
        if machine.busy >= _BUSY and summary.workers > 1:
            where = f"host {machine.number}" if len(found) > 1 else "this machine"
            yield (
                f"{machine.busy:.0%} of the {machine.cores} of {where} are busy: more workers on it"
                " do not train faster"
            )


def _print_advice(console: Console, run_dir: Path, summary: Summary, folders: list[Path]) -> None:
    """Prints the one change that should gain most, and what an earlier change has gained."""
    from rich.markup import escape

    kept = _recommendation(console, run_dir, summary, folders)
    if kept.get("recommended"):
        console.print(
            f"[yellow]recommended[/]: {escape(kept['recommended']['text'])}"
            f" `syrtos report {escape(str(run_dir))}` says why.",
            soft_wrap=True,
        )
    elif not kept and (measured := speed.find_measured(run_dir)) and measured.advice:
        console.print(f"[yellow]recommended[/]: {measured.advice}", soft_wrap=True)
    if kept.get("before"):
        console.print(kept["before"]["text"], soft_wrap=True, markup=False)


def _recommendation(
    console: Console, run_dir: Path, summary: Summary, folders: list[Path]
) -> dict[str, Any]:
    """Writes down what is recommended after a run, and returns it.

    The result is empty for short runs and for those whose ledgers take long to read.
    """
    size = sum(
        path.stat().st_size for folder in folders for path in RunDir(folder).ledgers().values()
    )
    if summary.training_seconds < _WORTH_A_WORD or size > _LONG:
        return {}
    # Only now: NumPy takes 0.1 s to import.
    from syrtos.report import promises, read

    try:
        return promises.keep(read.load(run_dir))
    except Exception as error:
        # a run that has ended well stays so, whatever its record looks like
        console.print(
            f"no recommendation: {type(error).__name__}: {error}", soft_wrap=True, markup=False
        )
        return {}


def _print_bad_records(console: Console, folders: list[Path]) -> None:
    """Prints the records that were left out."""
    # Only now: `syrtos run` should start at once.
    from syrtos.data.bad_records import left_out

    bad = left_out(*folders)
    if bad:
        console.print(
            f"[yellow]{len(bad):,} bad records were skipped[/]; the list is in"
            f" {folders[0] / 'data'}:",
            soft_wrap=True,
        )
    for facts in bad[:_BAD_SHOWN]:
        console.print(
            f"  {facts['file']}, offset {facts['offset']}: {facts['reason']}", soft_wrap=True
        )


def _table(summary: Summary, against_one: str, full: bool) -> Table:
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in _rows(summary, against_one, full):
        table.add_row(name, text)
    return table


def _rows(summary: Summary, against_one: str, full: bool) -> Iterator[tuple[str, str]]:
    yield "workers", str(summary.workers)
    if against_one:
        yield "speed", against_one
    yield from _pace_rows(summary, full)
    yield from _way_rows(summary, full)
    shares = _shares(summary)
    if full:
        yield from ((name, f"{share:6.1%} {'█' * round(share * 40)}") for name, share in shares)
    else:
        most = sorted(shares, key=lambda each: -each[1])[:_MOST_KINDS]
        yield "spent on", ", ".join(f"{name} {share:.0%}" for name, share in most)
    if summary.skew and summary.skew[1] > 0.1:
        yield (
            "slowest",
            f"rank {summary.skew[0]}: the others wait for it, {summary.skew[1]:.0%} of the time",
        )


def _pace_rows(summary: Summary, full: bool) -> Iterator[tuple[str, str]]:
    span = (
        "of all generations" if summary.restarts.number else "from the start of the run to its end"
    )
    yield "time", f"{summary.seconds:,.1f} s, {span}"
    if summary.steps:
        unit, rate, over = _rate(summary)
        steps = f"{summary.steps:,} {_step_kind(summary)}(median {summary.step_ms:.1f} ms)"
        yield "steps", steps if full else f"{steps}, {rate} {unit}"
        if full:
            yield unit, f"{rate} {over}"
    if summary.restarts.number:
        yield "restarts", _restarts(summary)
        if summary.restarts.are_recorded:
            yield "goodput", f"{summary.goodput:.1%} of the time was not lost to restarts"


def _way_rows(summary: Summary, full: bool) -> Iterator[tuple[str, str]]:
    """Yields how steps were made."""
    facts = summary.facts
    if facts.get("left_out"):
        yield "left out", f"updates whose gradients were not finite: {facts['left_out']:,}"
    if update := _update(summary, full):
        yield "optimizer", update
    if sent := _exchange_text(summary):
        yield "sent", sent
    if full and "input" in facts:
        yield "data", _WAYS[facts["input"]]
    if full and "computed_whole" in facts:
        yield "on each worker", f"{facts['computed_whole']}: of rows that are gathered"
    if full and "compiled" in facts:
        yield "compiled", f"{facts['compiled']}, between exchanges"
    if "not_split" in facts:
        yield "[yellow]not split[/]", f"{facts['not_split']}; computed as by one process"


def _shares(summary: Summary) -> list[tuple[str, float]]:
    """Returns the kinds of time that are shown, by their names, with their parts of all time."""
    # then XLA exchanges inside of a step, and does not tell for how long
    compiled = is_hidden(summary.facts)
    return [
        (f"{words} + exchange" if compiled and kind == "compute" else words, summary.shares[kind])
        for kind, words in SHARES.items()
        if summary.shares[kind] >= 0.0005
        or (kind in _ALWAYS and not (compiled and kind == "exchange"))
    ]


def _update(summary: Summary, full: bool) -> str:
    """Returns how optimizers update the weights.

    The text is empty where each of them does it on every worker in the framework's own way, and,
    unless ``full``, where XLA compiles that way.
    """
    compiled = "compiled by XLA" * (full and summary.facts.get("update") == "compiled")
    if "state_whole" in summary.facts:
        kept, whole = (summary.facts[name] / 1e6 for name in ("state_kept", "state_whole"))
        digits = 0 if whole >= 10 else 2
        sharded = (
            f"sharded: a worker keeps {kept:,.{digits}f} of {whole:,.{digits}f} MB of the"
            " optimizer's state"
        )
        return f"{compiled}, {sharded}" if compiled else sharded
    if "asked_to_shard_update" in summary.facts and summary.workers > 1:
        return (
            "on every worker: no optimizer of the script keeps a state that --shard-update can"
            " divide"
        )
    return compiled


def _exchange_text(summary: Summary) -> str:
    """Returns what workers exchange; empty where it is each gradient as it is."""
    codec = str(summary.facts.get("compress", "none"))
    coded = f" as {codec}" * (codec != "none")
    if "sync_every" in summary.facts:
        return f"changes of weights{coded}, every {summary.facts['sync_every']} steps"
    if "asked_to_sync_every" in summary.facts and summary.workers > 1:
        return (
            f"gradients{coded}, in each step: only `fit` of Keras trains as --sync-every asks, and"
            " the script has called none"
        )
    return f"gradients{coded}" if coded else ""


def _restarts(summary: Summary) -> str:
    """Returns the number of restarts and what they have cost."""
    restarts = summary.restarts
    if not restarts.are_recorded:
        return f"{restarts.number}: what they cost could not be recorded"
    again = (
        f", {restarts.steps:,} step{'s' * (restarts.steps != 1)} again in"
        f" {restarts.step_seconds:,.1f} s"
        if restarts.steps
        else ""
    )
    if not restarts.goes_on:
        return (
            f"{restarts.number}: {restarts.seconds:,.1f} s; the run ended before training went on"
        )
    return f"{restarts.number}: {restarts.seconds:,.1f} s until training went on{again}"


def _step_kind(summary: Summary) -> str:
    """Returns the kind of step that is counted; empty where it is a batch of `fit`."""
    if summary.facts.get("training") == "asynchronous":
        return "of all workers "
    return "updates of the script's own loop " if summary.loops else ""


def _rate(summary: Summary) -> tuple[str, str, str]:
    """Returns samples, or else steps, per second, and the period that they are counted over."""
    over = (
        "from the first update to the last"
        if summary.loops
        else "over all of fit, with validation and callbacks"
    )
    if summary.samples_per_second:
        return "samples/s", f"{summary.samples_per_second:,.0f}", over
    return "steps/s", f"{summary.steps_per_second:,.1f}", over
