"""The facts of a report about a run, as plain values for the page, the text and the JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from syrtos import settings
from syrtos.data import proof
from syrtos.errors import DataError
from syrtos.report import (
    advice,
    curves,
    exchanged,
    machines,
    noise_scale,
    promises,
    situation,
    speed,
    steps,
    waterfall,
)
from syrtos.report.read import RunRecord
from syrtos.report.waterfall import PARTS
from syrtos.run_dir import RunDir

VERSION = 1
_HIDDEN = "******"
Facts = dict[str, Any]


def of_run(run: RunRecord) -> Facts:
    """Returns the facts of a run; for one that goes on, those that have been written so far."""
    found = situation.of(run)
    findings = advice.findings(found) if found else []
    seconds = waterfall.of_run(run)
    measured = speed.find_measured(run.folder)
    is_slower = measured is not None and not measured.is_disturbed and measured.times < 1
    pays = not is_slower and all(finding.rule != "tiny batches" for finding in findings)
    return {
        "version": VERSION,
        "run": _run(run),
        "missing": list(run.missing),
        "recommended": findings[0].facts() if findings else None,
        "findings": [finding.facts() for finding in findings],
        "nothing_found": (
            "" if findings else _reason_for_nothing(seconds, trains=found is not None)
        ),
        "before": promises.read_kept(run.folder).get("before"),
        "split": _split(run),
        "speed": "" if measured is None else str(measured),
        "batch": _batch(run, found),
        "parts": PARTS,
        "seconds": seconds,
        # what restarts cost is not known where the disk was full
        "goodput": (
            waterfall.goodput(seconds)
            if all(each.is_recorded for each in run.generations)
            else None
        ),
        "samples_per_second": situation.samples_per_second(run),
        "rate_of": (
            "samples"
            if any(rank.lines.samples.any() for rank in run.last_trained.ranks)
            else "steps"
        ),
        "ranks": _ranks(run),
        "steps": steps.describe_steps(run),
        "heat": steps.heat(run),
        "curves": curves.describe_curves(run),
        "exchange": exchanged.describe_exchange(run),
        "noise_scale": noise_scale.describe_noise_scale(run, pays),
        "machines": machines.describe_machines(run),
        "data": _data(run),
        "incidents": _incidents(run),
        "trace": _trace(run),
    }


def _run(run: RunRecord) -> Facts:
    request = run.request
    program = request.get("program") or {}
    last = run.generations[-1]
    return {
        "name": run.folder.name,
        "folder": str(run.folder),
        "script": program.get("name", ""),
        "arguments": shown_arguments(program.get("arguments") or ()),
        "workers": len(run.last_trained.ranks),
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
    """Returns a script's arguments without secrets.

    Values of names that say so are hidden (`--api-key=...`, `--token ...`), and users in addresses.
    """
    shown: list[str] = []
    before = ""
    for word in map(str, words):
        name, equals, _ = word.partition("=")
        if before and not word.startswith("-"):
            shown.append(_HIDDEN)
        elif equals and settings.is_secret(name.lstrip("-")):
            shown.append(f"{name}={_HIDDEN}")
        else:
            shown.append(re.sub(r"//[^/\s]*@|//[^@\s]*:[^@\s]*@", f"//{_HIDDEN}@", word))
        before = (
            word
            if word.startswith("-") and not equals and settings.is_secret(word.lstrip("-"))
            else ""
        )
    return shown


def changed_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that differ from the defaults."""
    defaults = vars(settings.Options())
    return {
        name: value
        for name, value in given.items()
        if name != "run_dir" and defaults.get(name) != value
    }


def _batch(run: RunRecord, found: situation.Situation | None) -> str:
    """Returns the samples of a step and which of them a worker trains; empty if not known."""
    shares = [steps.median(each.samples) for each in found.steps] if found else []
    whole, mean = sum(shares), sum(shares) / max(len(shares), 1)
    if not whole:
        return ""
    if len(shares) == 1:
        return f"A step has {whole:,.0f} samples."
    if speed.batch_of(run.request) == "per-worker":
        return (
            f"A step has {whole:,.0f} samples: each of the {len(shares)} workers has a batch of its"
            f" own of {mean:,.0f} (`--batch per-worker`)."
        )
    return (
        f"A step has {whole:,.0f} samples, which {len(shares)} workers divide (`--batch global`):"
        f" {mean:,.0f} each."
    )


def _reason_for_nothing(seconds: waterfall.Seconds, trains: bool) -> str:
    """Returns the reason why nothing is recommended."""
    if not trains:
        return "The run has not made enough training steps to say what to change."
    whole = sum(seconds.values()) or 1.0
    part = max(seconds, key=seconds.__getitem__)
    most = f"{PARTS[part]} ({seconds[part] / whole:.0%})"
    return (
        "No rule found a change that would save 5 % of the time of training. Most of the time of"
        f" the run went into {most}."
    )


def _ranks(run: RunRecord) -> list[Facts]:
    """Returns the workers of the last generation that has trained, with their seconds."""
    number = list(run.generations).index(run.last_trained)
    return [
        {"rank": rank.rank, "host": steps.host_of(run, rank.rank), "seconds": seconds}
        for rank, seconds in zip(
            run.last_trained.ranks, waterfall.by_rank(run)[number], strict=True
        )
    ]


def _split(run: RunRecord) -> str:
    """Returns sentences about what is not split, computed whole, or compiled.

    The text is empty if there is nothing to say.
    """
    if why := run.facts.get("not_split"):
        return f"Not split: {why}. The whole batch is computed as by one process."
    said = []
    if whole := run.facts.get("computed_whole"):
        said.append(f"Each worker computes on gathered rows of whole batches: {whole}.")
    if compiled := run.facts.get("compiled"):
        said.append(f"XLA compiles the step between its exchanges: {compiled}.")
    return " ".join(said)


def _data(run: RunRecord) -> Facts:
    """Returns what the sample ledgers say: whether each epoch trained on each record exactly once.

    Nothing is proved for data sets that do not tell records apart.
    """
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


def is_failure(outcome: Mapping[str, Any]) -> bool:
    """Returns whether a generation is known to have ended otherwise than with success."""
    return outcome.get("end") not in (None, "FINISHED", "unknown")


def _incidents(run: RunRecord) -> list[Facts]:
    """Returns the ends of generations that others followed, or that were no success."""
    found, reached = [], 0
    for number, generation in enumerate(run.generations, 1):
        is_last = number == len(run.generations)
        outcome, kept = generation.outcome, run.step_kept(number - 1)
        reached = (
            generation.trained_before + generation.steps_trained
            if generation.steps_trained
            else reached
        )
        if (is_last and not is_failure(outcome)) or not outcome:
            continue
        found.append(
            {
                "generation": number,
                "at": round(generation.offset + generation.seconds, 2),
                "end": outcome.get("end"),
                "text": outcome.get("text", ""),
                "step": reached,
                "again": (
                    None
                    if kept is None
                    else max(reached - kept, 0)
                    if generation.steps_trained
                    else 0
                ),
                "logs": str(RunDir(generation.folder).logs),
            }
        )
        reached = reached if kept is None else min(reached, kept)
    return found


def _trace(run: RunRecord) -> str | None:
    """Returns the file of a profile, relative to the run directory, if one was made."""
    found = [each.folder / "trace.json.gz" for each in reversed(run.generations)]
    path: Path | None = next((path for path in found if path.exists()), None)
    return None if path is None else str(path.relative_to(run.folder))
