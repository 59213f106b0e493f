"""The one screen at the end of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from syrtos.launch import generations
from syrtos.observe.forecast import SHARDING
from syrtos.observe.report import SHARES, Summary, summarize

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_INPUT_BOUND = 0.1
_NETWORK_BOUND = 0.3
_UPDATE_BOUND, _WORTH_SHARDING = 0.15, 0.05
_WORTH_A_WORD = 5.0  # seconds
_BAD_SHOWN = 10
_ADVICE = {
    "planned": "Parsing takes most of it: make `parse_fn` cheaper (smaller images, fewer Python operations), or give each worker more cores.",
    "own": "Let the pipeline prepare batches ahead (`dataset.prefetch`, `num_parallel_calls` in `map`), or make them cheaper to prepare.",
    "records": "Each worker reads all files and parses its part. With `syrtos.data` it reads only its own records.",
    "sliced": "Each worker reads and prepares whole batches and takes its rows. With `syrtos.data` it reads only its own records.",
}
_WAYS = {
    "planned": "each worker reads its own records",
    "records": "each worker reads all records and prepares its own",
    "sliced": "each worker reads and prepares all records, and takes its rows of each batch",
}
_ALWAYS = ("compute", "exchange", "wait", "input", "rest")


def print_summary(run_dir: Path) -> None:
    """Prints the summary of a run's ledgers; only the run directory if nothing was computed."""
    print_table(run_dir)
    print(f"run directory: {run_dir}", file=sys.stderr)


def print_table(run_dir: Path) -> None:
    """Prints the table of all generations of a run, if anything was computed."""
    folders = generations.all_folders(run_dir)
    summary = summarize(*folders)
    if summary.steps or summary.shares["compute"] or summary.shares["evaluation"]:
        # only here: rich takes 45 ms to import, and a run that computes nothing should start and end at once
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
        console.print(_table(summary))
        _print_about_network(console, summary)
        _print_about_update(console, summary)
        _print_about_data(console, summary, folders)


def _print_about_network(console: Console, summary: Summary) -> None:
    """What would help where workers of several hosts wait for their exchanges."""
    seconds = (summary.shares["exchange"] + summary.shares["wait"]) * summary.seconds
    share = seconds / summary.training_seconds if summary.training_seconds else 0.0
    options = {"compress", "sync_every"} & summary.facts.keys()
    if "hosts" in summary.facts and not options and share > _NETWORK_BOUND and seconds > _WORTH_A_WORD:
        console.print(
            f"[yellow]network-bound[/]: {share:.0%} of the time of training went into exchanges and waiting for them. On a slow network `--compress auto` "
            "or `--sync-every 32` sends less: see docs/slow-networks.md.",
            soft_wrap=True,
        )


def _print_about_update(console: Console, summary: Summary) -> None:
    """Whether dividing the optimizer's update would have paid, on one host."""
    facts, training = summary.facts, summary.training_seconds
    update = summary.shares["update"] * summary.seconds
    saved = update * (1 - 1 / max(summary.workers, 1)) - summary.steps * SHARDING * facts.get("gradient_bytes", 0)
    divisible = facts.get("optimizer_state", 0) / 1e6
    pays = saved > _WORTH_SHARDING * training and update > max(_UPDATE_BOUND * training, _WORTH_A_WORD)
    if divisible and pays and "hosts" not in facts:
        console.print(
            f"[yellow]update-bound[/]: {update / training:.0%} of the time of training went into the optimizer's update. `--shard-update` divides it among the "
            f"workers (about {saved / training:.0%} less time), and each keeps {divisible / summary.workers:,.0f} of {divisible:,.0f} MB of the optimizer's "
            "state.",
            soft_wrap=True,
        )


def _print_about_data(console: Console, summary: Summary, folders: list[Path]) -> None:
    """Whether training waits for data and what would help, and which records were left out."""
    waited = summary.input_seconds
    share = waited / summary.training_seconds if summary.training_seconds else 0.0
    if share > _INPUT_BOUND and waited > _WORTH_A_WORD:
        console.print(
            f"[yellow]input-bound[/]: {share:.0%} of the time of training went into waiting for data. {_advice(summary)}",
            soft_wrap=True,
        )
    from syrtos.data.bad import left_out  # only now: `syrtos run` should start at once

    bad = left_out(*folders)
    if bad:
        console.print(
            f"[yellow]{len(bad):,} bad records were skipped[/]; the list is in {folders[0] / 'data'}:", soft_wrap=True
        )
    for facts in bad[:_BAD_SHOWN]:
        console.print(f"  {facts['file']}, offset {facts['offset']}: {facts['reason']}", soft_wrap=True)


def _advice(summary: Summary) -> str:
    """The one change that helps."""
    return _ADVICE[summary.facts.get("input", "own")]


def _table(summary: Summary) -> Table:
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("workers", str(summary.workers))
    span = "of all generations" if summary.restarts.number else "from the start of the run to its end"
    table.add_row("time", f"{summary.seconds:,.1f} s, {span}")
    if summary.steps:
        table.add_row("steps", f"{summary.steps:,} {_counted(summary)}(median {summary.step_ms:.1f} ms)")
    if summary.restarts.number:
        table.add_row("restarts", _restarts(summary))
        table.add_row("goodput", f"{summary.goodput:.1%} of the time was not lost to restarts")
    if summary.facts.get("left_out"):
        table.add_row("left out", f"updates whose gradients were not finite: {summary.facts['left_out']:,}")
    if update := _update(summary):
        table.add_row("optimizer", update)
    if sent := _sent(summary):
        table.add_row("sent", sent)
    if "input" in summary.facts:
        table.add_row("data", _WAYS[summary.facts["input"]])
    if summary.steps:
        table.add_row(*_rate(summary))
    compiled = (
        summary.facts.get("exchange") == "compiled"
    )  # then XLA exchanges inside of a step, and does not tell for how long
    for kind, words in SHARES.items():
        share = summary.shares[kind]
        if share >= 0.0005 or (kind in _ALWAYS and not (compiled and kind == "exchange")):
            table.add_row(
                f"{words} + exchange" if compiled and kind == "compute" else words,
                f"{share:6.1%} {'█' * round(share * 40)}",
            )
    if summary.skew and summary.skew[1] > 0.1:
        table.add_row("slowest", f"rank {summary.skew[0]}: the others wait {summary.skew[1]:.0%} more of their time")
    return table


def _update(summary: Summary) -> str:
    """How optimizers update the weights, where it is not each of them on every worker in the framework's own way."""
    compiled = "compiled by XLA" * (summary.facts.get("update") == "compiled")
    if "state_whole" in summary.facts:
        kept, whole = (summary.facts[name] / 1e6 for name in ("state_kept", "state_whole"))
        digits = 0 if whole >= 10 else 2
        sharded = f"sharded: a worker keeps {kept:,.{digits}f} of {whole:,.{digits}f} MB of the optimizer's state"
        return f"{compiled}, {sharded}" if compiled else sharded
    if "asked_to_shard_update" in summary.facts and summary.workers > 1:
        return "on every worker: no optimizer of the script keeps a state that --shard-update can divide"
    return compiled


def _sent(summary: Summary) -> str:
    """What workers exchange, where it is not each gradient as it is."""
    codec = str(summary.facts.get("compress", "none"))
    coded = f" as {codec}" * (codec != "none")
    if "sync_every" in summary.facts:
        fragments = summary.facts.get("fragments", 0)
        hidden = f", in {fragments} part{'s' * (fragments > 1)} that travel while training goes on" if fragments else ""
        return f"changes of weights{coded}, every {summary.facts['sync_every']} steps{hidden}"
    if "asked_to_sync_every" in summary.facts and summary.workers > 1:
        return f"gradients{coded}, in each step: only `fit` of Keras trains as --sync-every asks, and the script has called none"
    return f"gradients{coded}" if coded else ""


def _restarts(summary: Summary) -> str:
    """How many there were, and what they have cost."""
    restarts = summary.restarts
    again = f", {restarts.steps:,} steps again in {restarts.step_seconds:,.1f} s" if restarts.steps else ""
    return f"{restarts.number}: {restarts.seconds:,.1f} s until training went on{again}"


def _counted(summary: Summary) -> str:
    """The kind of step that is counted, where it is not a batch of `fit`."""
    if summary.facts.get("training") == "asynchronous":
        return "of all workers "
    return "updates of the script's own loop " if summary.loops else ""


def _rate(summary: Summary) -> tuple[str, str]:
    """Samples, or else steps, per second, and the period of time that they are counted over."""
    over = "from the first update to the last" if summary.loops else "over all of fit, with validation and callbacks"
    if summary.samples_per_second:
        return "samples/s", f"{summary.samples_per_second:,.0f} {over}"
    return "steps/s", f"{summary.steps_per_second:,.1f} {over}"
