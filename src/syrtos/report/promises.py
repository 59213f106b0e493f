"""A check whether the gain that an earlier run of the same script was promised came true."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from syrtos.checkpoint import durable
from syrtos.json_files import document
from syrtos.report import advice, situation
from syrtos.report.read import RunRecord
from syrtos.run_dir import RunDir

_FILE = "advice.json"
_WHOLE = "FINISHED"


def keep(run: RunRecord) -> dict[str, Any]:
    """Writes down the recommendation after a run, and how fast it trained, and returns them.

    Returns an empty dict if the run has not trained.
    """
    found = situation.of(run)
    if found is None:
        return {}
    findings, rate = advice.findings(found), situation.samples_per_second(run, without_first=True)
    facts = {
        "samples_per_second": rate,
        "end": _end_of(run),
        "recommended": findings[0].facts() if findings else None,
        "before": _previous_run_facts(run, rate),
    }
    durable.replace(run.folder / _FILE, (json.dumps(facts, indent=2) + "\n").encode())
    return facts


def read_kept(run_dir: Path) -> dict[str, Any]:
    """Returns what `keep` has written; empty if there is nothing that can be read."""
    return document(run_dir / _FILE)


def _previous_run_facts(run: RunRecord, rate: float) -> dict[str, Any] | None:
    """Returns facts of the last run of the same script.

    The result is None if that run had no recommendation, or if nothing was changed since.
    """
    if _end_of(run) != _WHOLE:
        return None
    candidates = sorted(
        run.folder.parent.glob(f"*/{_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    folders = [path.parent for path in candidates if path.parent != run.folder]
    earlier, request, kept = next(
        (
            (folder, theirs, kept)
            for folder in folders
            # a run that was interrupted has another mix of work
            if (kept := read_kept(folder)).get("end") == _WHOLE
            and _same_script(run.request, theirs := RunDir(folder).request())
        ),
        (None, {}, {}),
    )
    if earlier is None:
        return None
    recommended, past = kept.get("recommended"), kept.get("samples_per_second")
    # the same run again proves nothing
    changed = _differences(run.request, request)
    if (
        not recommended
        or not past
        or not changed
        or not _may_follow(recommended["rule"], run.request, request)
    ):
        return None
    came = round(rate / past, 3)
    text = (
        f"The advice after {earlier.name} was: {recommended['action']}"
        f" ({recommended['gain']:.2f}× expected). Since then {changed} changed, and this run trains"
        f" {came:.2f}× as many samples per second."
    )
    return {
        "run": earlier.name,
        "action": recommended["action"],
        "expected": recommended["gain"],
        "came": came,
        "text": text,
    }


def _end_of(run: RunRecord) -> str:
    return str(run.generations[-1].outcome.get("end"))


def _same_script(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    def of(request: Mapping[str, Any]) -> tuple[object, object]:
        return (request.get("program") or {}).get("name"), request.get("backend")

    return bool(mine) and of(mine) == of(theirs)


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Returns the differences from an earlier run, in words; empty if there are none."""
    parts = {
        "the script's file": mine.get("sha256") != theirs.get("sha256"),
        "its arguments": (
            (mine.get("program") or {}).get("arguments")
            != (theirs.get("program") or {}).get("arguments")
        ),
        "the number of workers": mine.get("workers") != theirs.get("workers"),
        "the hosts": mine.get("hosts") != theirs.get("hosts"),
        "options of `syrtos run`": _options(mine) != _options(theirs),
    }
    changed = [name for name, is_other in parts.items() if is_other]
    return " and ".join([", ".join(changed[:-1]), changed[-1]] if len(changed) > 1 else changed)


def _may_follow(rule: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Returns whether the change may be the one that was recommended."""
    edited = any(mine.get(name) != theirs.get(name) for name in ("sha256", "program"))
    if rule == "tiny batches":
        return edited or (mine.get("workers") or 0) < (theirs.get("workers") or 0)
    flags = {"update-bound": ("shard_update",), "exchange-bound": ("compress", "sync_every")}.get(
        rule
    )
    if flags:
        return any(_options(mine).get(name) != _options(theirs).get(name) for name in flags)
    return edited or (
        rule in ("slow host", "slow reader", "slow worker")
        and mine.get("hosts") != theirs.get("hosts")
    )


def _options(request: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in (request.get("options") or {}).items()
        if name not in ("run_dir", "profile")
    }
