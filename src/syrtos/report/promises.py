"""Whether the gain that an earlier run of the same script was promised came true."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from syrtos.checkpoint import durable
from syrtos.report import advice, situation
from syrtos.report.read import Run

_FILE = "advice.json"


def keep(run: Run) -> dict[str, Any]:
    """Writes down what is recommended after a run, and how fast it trained. Returns it; empty if the run has not trained."""
    found = situation.of(run)
    if found is None:
        return {}
    findings = advice.findings(found)
    facts = {
        "samples_per_second": found.samples_per_second,
        "recommended": findings[0].facts() if findings else None,
        "before": _before(run, found.samples_per_second),
    }
    durable.replace(run.folder / _FILE, (json.dumps(facts, indent=2) + "\n").encode())
    return facts


def kept(run_dir: Path) -> dict[str, Any]:
    """What `keep` has written; empty if it has written nothing that can be read."""
    try:
        found = json.loads((run_dir / _FILE).read_text())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def _before(run: Run, rate: float) -> dict[str, Any] | None:
    """The last run of the same script beside this one, if it had a recommendation and something was changed since."""
    candidates = sorted(run.folder.parent.glob(f"*/{_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in candidates:
        if path.parent != run.folder and _same_script(run.request, _request(path.parent)):
            earlier = kept(path.parent)
            recommended, past = earlier.get("recommended"), earlier.get("samples_per_second")
            if not recommended or not past or not _changed(run.request, _request(path.parent)):
                return None
            return {
                "run": path.parent.name,
                "action": recommended["action"],
                "expected": recommended["gain"],
                "came": round(rate / past, 3),
            }
    return None


def words(before: Mapping[str, Any]) -> str:
    """A sentence about it."""
    return (
        f"The run before, {before['run']}, was told: {before['action']}: {before['expected']:.2f}× expected. This run trains {before['came']:.2f}× as many "
        "samples per second."
    )


def _request(run_dir: Path) -> dict[str, Any]:
    try:
        return json.loads((run_dir / "run.json").read_text())
    except (OSError, ValueError):
        return {}


def _same_script(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    return bool(mine) and (mine.get("program") or {}).get("name") == (theirs.get("program") or {}).get("name")


def _changed(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether script, arguments, options or workers are others: the same again proves nothing."""
    return any(mine.get(name) != theirs.get(name) for name in ("sha256", "program", "workers", "hosts")) or _options(
        mine
    ) != _options(theirs)


def _options(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (request.get("options") or {}).items() if name != "run_dir"}
