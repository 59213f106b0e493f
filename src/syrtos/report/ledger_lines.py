"""Lines of ledgers, and what a launcher has noted beside them, from files that may be damaged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from syrtos.observe.clock import KINDS
from syrtos.report.json_files import parse_line, read_object

_TIMES = frozenset((*KINDS, "wall", "steps", "samples"))
_FACTS = frozenset(
    ("began", "trained", "left_out", "state_kept", "state_whole", "first_batch", "node", "hosts")
)


def sound_lines(path: Path, damaged: list[Path]) -> Iterator[dict[str, Any]]:
    """Yields the lines of a ledger that can be read; adds its path to ``damaged`` for others."""
    try:
        with path.open("rb") as file:
            for line in file:
                # a worker that was killed may have left half a line
                if not line.endswith(b"\n"):
                    continue
                found = parse_line(line)
                if found is not None and is_sound(found):
                    yield found
                elif path not in damaged:
                    damaged.append(path)
    except OSError:  # the run directory was removed just now
        return


def is_sound(line: Mapping[str, Any]) -> bool:
    """Returns whether the fields of a line have the types in which workers write them."""
    phase = line.get("phase")
    if phase == "facts":
        pair = line.get("imported", [0, 0])
        return (
            all(_is_number(line[name]) for name in _FACTS & line.keys())
            and isinstance(pair, list)
            and len(pair) == 2
            and all(map(_is_number, pair))
        )
    return (
        isinstance(phase, str)
        and "wall" in line
        and all(_is_number(line[name]) for name in _TIMES & line.keys())
    )


def launcher_facts(path: Path, damaged: list[Path]) -> dict[str, Any]:
    """Returns when a generation began and ended, s since the epoch, and its outcome.

    What is not known is absent; adds the path to ``damaged`` where that is the file's fault.
    """
    try:
        found = read_object(path)
    except OSError:
        return {}
    except ValueError:
        damaged.append(path)
        return {}
    times = {name: found[name] for name in ("began", "ended") if _is_number(found.get(name))}
    outcome = found.get("outcome", {})
    sound = {"outcome": outcome} if isinstance(outcome, dict) and outcome else {}
    if len(times) < len({"began", "ended"} & found.keys()) or not isinstance(outcome, dict):
        damaged.append(path)
    return times | sound


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
