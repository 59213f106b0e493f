"""All that a report says about a run, as plain values: the page, the text and the JSON are made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from syrtos import settings
from syrtos.data import proof
from syrtos.errors import DataError
from syrtos.report import advice, curves, exchanged, machines, promises, situation, steps, waterfall
from syrtos.report.read import Run
from syrtos.report.waterfall import PARTS

VERSION = 1
Facts = dict[str, Any]


def of_run(run: Run) -> Facts:
    """The facts of a run; those of one that goes on are of what has been written down so far."""
    found = situation.of(run)
    findings = advice.findings(found) if found else []
    seconds = waterfall.of_run(run)
    return {
        "version": VERSION,
        "run": _run(run),
        "missing": list(run.missing),
        "recommended": findings[0].facts() if findings else None,
        "findings": [finding.facts() for finding in findings],
        "nothing_found": "" if findings else _nothing(run, seconds, trains=found is not None),
        "before": promises.kept(run.folder).get("before"),
        "parts": PARTS,
        "seconds": seconds,
        "goodput": waterfall.goodput(seconds),
        "samples_per_second": found.samples_per_second if found else 0.0,
        "ranks": _ranks(run),
        "steps": steps.described(run),
        "heat": steps.heat(run),
        "curves": curves.described(run),
        "exchange": exchanged.described(run),
        "machines": machines.described(run),
        "data": _data(run),
        "incidents": _incidents(run),
        "trace": _trace(run),
    }


def _run(run: Run) -> Facts:
    request = run.request
    program = request.get("program") or {}
    last = run.generations[-1]
    return {
        "name": run.folder.name,
        "folder": str(run.folder),
        "script": program.get("name", ""),
        "arguments": shown_arguments(program.get("arguments") or ()),
        "workers": len(run.trained.ranks),
        "hosts": int(run.facts.get("hosts", 1)),
        "began": run.generations[0].began,
        "seconds": run.seconds,
        "goes_on": run.goes_on,
        "outcome": dict(last.outcome),
        "options": changed_options(request.get("options") or {}),
        "versions": request.get("versions") or {},
        "generations": len(run.generations),
    }


def shown_arguments(words: Sequence[str]) -> list[str]:
    """A script's arguments without values whose names say that they are secret: `--api-key=...`, `--token ...`."""
    shown: list[str] = []
    for number, word in enumerate(words):
        name, equals, _ = str(word).partition("=")
        before = str(words[number - 1]) if number else ""
        if (
            before.startswith("-")
            and "=" not in before
            and not str(word).startswith("-")
            and settings.is_secret(before.lstrip("-"))
        ):
            shown.append("******")
        else:
            shown.append(f"{name}=******" if equals and settings.is_secret(name.lstrip("-")) else str(word))
    return shown


def changed_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not the defaults."""
    defaults = vars(settings.Options())
    return {name: value for name, value in given.items() if name != "run_dir" and defaults.get(name) != value}


def _nothing(run: Run, seconds: waterfall.Seconds, trains: bool) -> str:
    """Why nothing is recommended."""
    if not trains:
        return "The run has not made enough training steps to say what to change."
    whole = sum(seconds.values()) or 1.0
    part = max(seconds, key=seconds.__getitem__)
    return f"No rule finds 5 % of the time of training to gain. Most of the time went into {PARTS[part]} ({seconds[part] / whole:.0%})."


def _ranks(run: Run) -> list[Facts]:
    """The workers of the last generation that has trained."""
    number = list(run.generations).index(run.trained)
    return [
        {"rank": rank.rank, "host": steps.host_of(run, rank.rank), "seconds": seconds}
        for rank, seconds in zip(run.trained.ranks, waterfall.by_rank(run)[number], strict=True)
    ]


def _data(run: Run) -> Facts:
    """Whether each record was trained on exactly once in each epoch, where the data set tells records apart."""
    how = run.facts.get("input")
    if not any((run.folder / "data").glob("samples-*-rank-*.jsonl")):
        return {"how": how, "proof": "none"}
    try:
        epochs = proof.verify(run.folder)
    except DataError as error:
        return {"how": how, "proof": "failed", "text": str(error)}
    return {
        "how": how,
        "proof": "verified",
        "epochs": [
            {
                "data": e.data,
                "epoch": e.epoch,
                "records": e.records,
                "done": e.done,
                "left_out": e.left_out,
                "complete": e.complete,
            }
            for e in epochs
        ],
    }


def _incidents(run: Run) -> list[Facts]:
    """The ends of generations that others followed, or that were no success."""
    found = []
    for number, generation in enumerate(run.generations, 1):
        is_last = number == len(run.generations)
        outcome = generation.outcome
        if (is_last and outcome.get("end") in (None, "FINISHED", "unknown")) or not outcome:
            continue
        after = None if is_last else run.generations[number].trained_before
        reached = generation.trained_before + generation.trained
        found.append(
            {
                "generation": number,
                "at": round(generation.offset + generation.seconds, 2),
                "end": outcome.get("end"),
                "text": outcome.get("text", ""),
                "step": reached,
                "again": None if after is None else max(reached - after, 0),
                "logs": str(generation.folder / "logs"),
            }
        )
    return found


def _trace(run: Run) -> str | None:
    """The file of a profile, if one was made."""
    found = [each.folder / "trace.json.gz" for each in reversed(run.generations)]
    path: Path | None = next((path for path in found if path.exists()), None)
    return None if path is None else str(path.relative_to(run.folder))
