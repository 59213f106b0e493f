"""A report as text, for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from syrtos.report.facts import Facts, is_failure

_BAR = 32


def _row(table: Table, *cells: str, style: str = "") -> None:
    """Adds a row of plain text to a table."""
    # names come from scripts: nothing in them is markup
    table.add_row(*map(Text, cells), style=style)


def report(facts: Facts) -> RenderableType:
    """Returns the facts that the page shows, as text without charts."""
    return Group(*_report(facts))


def _report(facts: Facts) -> Iterator[RenderableType]:
    run = facts["run"]
    began = (
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run["began"]))
        if run["began"]
        else "at an unknown time"
    )
    yield Text(f"{run['name']}  {run['script']} {' '.join(run['arguments'])}", "bold")
    end = "goes on" if run["goes_on"] else run["outcome"].get("end", "unknown").lower()
    workers = (
        f"{run['workers']} worker{'s' * (run['workers'] != 1)} on {run['hosts']}"
        f" host{'s' * (run['hosts'] != 1)}"
    )
    yield Text(f"{workers}, begun {began}, {run['seconds']:,.1f} s, {end}")
    for sentence in facts["missing"]:
        yield Text(f"missing: {sentence}", "yellow")
    if failure := failure_of(facts):
        yield Text(failure, "bold red")
    yield Text("")
    recommended = facts["recommended"]
    yield Text(
        f"recommended: {recommended['text']}" if recommended else facts["nothing_found"],
        "bold green" if recommended else "",
    )
    for finding in facts["findings"][1:]:
        yield Text(f"also: {finding['text']}")
    if facts["before"]:
        yield Text(facts["before"].get("text", ""))
    if facts["split"]:
        yield Text(facts["split"], "yellow" if facts["split"].startswith("Not") else "")
    if facts["speed"]:
        yield Text(f"Speed: {facts['speed']}")
    if facts["batch"]:
        yield Text(f"Batch: {facts['batch']}")
    yield Text("\nWhere the time went (average of the workers)")
    yield _seconds(facts)
    yield from _steps(facts)
    yield from _metrics(facts)
    yield from _others(facts)


def failure_of(facts: Facts) -> str:
    """Returns how a run failed or was stopped, as its end's first line says; empty for others."""
    outcome = facts["run"]["outcome"]
    if facts["run"]["goes_on"] or not is_failure(outcome):
        return ""
    return str(outcome.get("text") or "").partition("\n")[0]


def _seconds(facts: Facts) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    whole = sum(facts["seconds"].values()) or 1.0
    for part, words in facts["parts"].items():
        seconds = facts["seconds"][part]
        if seconds >= 0.0005 * whole:
            _row(
                table,
                words,
                f"{seconds:,.2f} s",
                f"{seconds / whole:6.1%}",
                "█" * round(_BAR * seconds / whole),
            )
    _row(table, "all", f"{whole:,.2f} s", "", "", style="bold")
    return table


def _steps(facts: Facts) -> Iterator[RenderableType]:
    steps = facts["steps"]
    if not steps["count"]:
        return
    rate = f"{facts['samples_per_second']:,.0f} {facts['rate_of']}/s, evaluation apart"
    yield Text(
        f"\nSteps: {steps['count']:,}, median {steps['median_ms']:.2f} ms, 95 % within"
        f" {steps['p95_ms']:.2f} ms; {rate}"
    )
    for outlier in steps["outliers"]:
        yield Text(f"  step {outlier['number']:,} took {outlier['ms']:,.1f} ms: {outlier['why']}")
    exchange = facts["exchange"]
    if exchange["gradient_bytes"]:
        sums, small = exchange["sums"], max(exchange["meetings"] - exchange["sums"], 0)
        bytes_each = (
            f"{exchange['gradient_bytes'] / 1e6:,.3f} MB a step in {sums:g} sum{'s' * (sums != 1)}"
        )
        yield Text(f"  {exchange['how']}: {bytes_each}, and {small:g} small exchanges")
    yield Text(f"\nBatch size\n{facts['noise_scale']['text']}")


def _metrics(facts: Facts) -> Iterator[RenderableType]:
    rows = [
        (name, (curve["epochs"] or curve["within"]))
        for name, curve in facts["curves"]["metrics"].items()
    ]
    if rows:
        yield Text("\nMetrics (first and last)")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for name, points in rows:
            _row(table, name, *(_number(points[k][1]) for k in (0, -1)))
        yield table


def _number(value: Any) -> str:
    return "not finite" if value is None else f"{value:.5g}"


def _others(facts: Facts) -> Iterator[RenderableType]:
    for machine in facts["machines"]:
        cpu = [value for value in machine["cpu"] if value is not None]
        most = max((value for value in machine["memory"] if value is not None), default=0)
        if cpu:
            memory = f"{most / 1e9:,.1f} of {(machine['memory_total'] or 0) / 1e9:,.1f} GB"
            yield Text(
                f"\n{machine['name']}: processors {sum(cpu) / len(cpu):.0f} % busy on average, at"
                f" most {memory} of memory in use"
            )
    data = facts["data"]
    if data["proof"] == "failed":
        yield Text(f"data: {data['text']}", "red")
    elif data["proof"] == "verified":
        complete = sum(epoch["complete"] for epoch in data["epochs"])
        yield Text(
            f"data: verified, {complete} of {len(data['epochs'])} epochs trained on each record"
            " exactly once"
        )
    for incident in facts["incidents"]:
        says = incident["text"]
        if incident["again"]:
            says = f"{says.rstrip('.')}; {incident['again']:,} steps were computed again"
        yield Text(f"incident at {incident['at']:,.1f} s, step {incident['step']:,}: {says}", "red")
    is_known = facts["goodput"] is not None
    if len(facts["incidents"]) and facts["run"]["generations"] > 1 and is_known:
        yield Text(f"goodput: {facts['goodput']:.1%} of the time was not lost")


def comparison(facts: tuple[Facts, Facts], found: Facts) -> RenderableType:
    """Returns two runs side by side."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in (
        "",
        facts[0]["run"]["name"],
        facts[1]["run"]["name"],
        "change",
        "95 % interval",
    ):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, first, second in found["asked"]:
        _row(table, name, str(first), str(second))
    _row(table, f"{facts[1]['rate_of']}/s", *(f"{rate:,.0f}" for rate in found["rates"]))
    for row in found["steps"]:
        change = "" if row["change"] is None else f"{row['change']:+.1f} %"
        noise = " noise" if row["is_noise"] else ""
        interval = (
            ""
            if row["interval"] is None
            else f"{row['interval'][0]:+.1f} to {row['interval'][1]:+.1f} %{noise}"
        )
        _row(
            table,
            f"{row['words']}, ms",
            f"{row['first_ms']:.3f}",
            f"{row['second_ms']:.3f}",
            change,
            interval,
        )
    for part, (first, second) in found["seconds"].items():
        if max(first, second) >= 0.05:
            _row(table, f"{facts[0]['parts'][part]}, s", f"{first:,.2f}", f"{second:,.2f}")
    for name, first, second in found["logs"]:
        _row(table, name, _number(first), _number(second))
    return Group(Text(found["text"], "bold"), table)
