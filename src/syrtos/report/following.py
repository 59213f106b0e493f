"""Logging of a run to trackers until it ends; a resumed run is logged further, not again."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from syrtos.checkpoint import durable
from syrtos.errors import ConfigurationError
from syrtos.json_files import document
from syrtos.report import facts, page, trackers
from syrtos.report.figures import Figures, FiguresPoint
from syrtos.report.ledger_lines import without_odd_members
from syrtos.report.read import load
from syrtos.report.trackers import About, Ended, Tracker
from syrtos.run_dir import RunDir

_PAUSE = 1.0
_STATE = "tracked.json"
_ENDS: Mapping[str, Ended] = {"FINISHED": "finished", "STOPPED": "stopped"}


def follow(run_dir: Path, words: Sequence[str], goes_on: Callable[[], bool]) -> None:
    """Logs what a run has written, and what it writes while ``goes_on()`` returns True.

    A tracker that fails is left out; the others go on.

    Raises:
        ConfigurationError: a tracker is not known or not usable, or the run was not logged to all
            trackers to the end.
    """
    trackers.check(words)
    state = document(run_dir / _STATE)
    used: dict[str, Tracker] = {}
    for word in words:
        _call_guarded(
            word,
            used,
            lambda word=word: used.update(
                {
                    word: trackers.make(
                        word, _read_about(run_dir), state.get(word, {}).get("known_as", "")
                    )
                }
            ),
        )
    figures, until = (
        Figures(run_dir),
        {word: float(state.get(word, {}).get("until", 0.0)) for word in words},
    )
    # when the run went on: later, points of several workers come in any order
    logged = dict(until)
    while used:
        last = not goes_on()
        points = figures.points()
        for word in list(used):
            new = [point for point in points if point.time > logged[word]]
            if new:
                _call_guarded(word, used, lambda word=word, new=new: _log(used[word], new))
                until[word] = max(until[word], new[-1].time)
        state |= {
            word: {"known_as": tracker.known_as, "until": until[word]}
            for word, tracker in used.items()
        }
        # A run that goes on later is logged from here on, not again; but for one whose disk is full.
        with contextlib.suppress(OSError):
            durable.replace(run_dir / _STATE, json.dumps(state).encode())
        if last:
            break
        time.sleep(_PAUSE)
    how, report = _read_end(run_dir)
    for word in list(used):
        _call_guarded(word, used, lambda word=word: used[word].end(how, report))
    for word, tracker in used.items():
        print(
            f"syrtos: logged to {word.partition(':')[0]} {tracker.known_as}".rstrip(),
            file=sys.stderr,
        )
    if len(used) < len(words):
        raise ConfigurationError(
            f"The run was not logged to {', '.join(word for word in words if word not in used)}."
        )


def _log(tracker: Tracker, points: Sequence[FiguresPoint]) -> None:
    tracker.log([point for point in points if point.values])


def _call_guarded(word: str, used: dict[str, Tracker], call: Callable[[], object]) -> None:
    """Calls ``call``; a tracker that fails is no longer used."""
    try:
        call()
    except Exception as error:
        # each tracker has errors of its own, and the run goes on without it
        used.pop(word, None)
        print(
            f"syrtos: --track {word.partition(':')[0]}: {type(error).__name__}: {error}",
            file=sys.stderr,
            flush=True,
        )


def _read_about(run_dir: Path) -> About:
    """Returns the facts of a run that are known when it begins, from its request."""
    request = without_odd_members(RunDir(run_dir).request())
    program = request.get("program") or {}
    script = str(program.get("name", "")) or run_dir.name
    parameters: dict[str, Any] = {
        "script": script,
        "workers": request.get("workers"),
        "hosts": ", ".join(host["name"] for host in request.get("hosts") or ()) or "this machine",
        "arguments": " ".join(facts.shown_arguments(program.get("arguments") or ())),
        **{
            f"options.{name}": value
            for name, value in facts.changed_options(request.get("options") or {}).items()
        },
        **{
            f"versions.{name}": version for name, version in (request.get("versions") or {}).items()
        },
    }
    return About(run_dir.name, Path(script).stem, run_dir, parameters)


def _read_end(run_dir: Path) -> tuple[Ended, Path | None]:
    """Returns how the run has ended, and the file of its report."""
    try:
        run = load(run_dir)
        how = _ENDS.get(run.generations[-1].outcome.get("end", ""), "failed")
        path = run_dir / "report.html"
        durable.replace(path, page.page([facts.of_run(run)]).encode())
        return how, path
    except (ConfigurationError, OSError) as error:
        print(f"syrtos: there is no report: {error}", file=sys.stderr)
        return "failed", None
