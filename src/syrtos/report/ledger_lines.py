"""Lines of ledgers, and what a launcher has noted beside them, from files that may be damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from syrtos.json_files import is_number, parse_line, read_object
from syrtos.observe.clock import KINDS
from syrtos.observe.ledger import NORMS

Line = Mapping[str, Any]
_TIMES = frozenset((*KINDS, *NORMS, "wall", "steps", "samples"))
_OF_STATE = ("trained", "left_out", "state_kept", "state_whole")
_FACTS = (*_OF_STATE, "began", "node", "hosts", "gradient_bytes", "gradient_sums", "meetings")
_LENGTHS = ("epochs", "steps_per_epoch")


def sound_lines(
    path: Path, damaged: list[Path], is_sound: Callable[[Line], bool] | None = None
) -> Iterator[dict[str, Any]]:
    """Yields the lines of a file that can be read; adds its path to ``damaged`` for others.

    ``is_sound`` says which lines those are; None: those of a ledger.
    """
    is_sound = is_sound or is_sound_line
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


def is_sound_line(line: Line) -> bool:
    """Returns whether the fields of a line have the types in which workers write them."""
    phase = line.get("phase")
    if phase == "facts":
        pair = line.get("imported", [0, 0])
        return (
            _are_numbers(line, *_FACTS)
            and isinstance(pair, list)
            and len(pair) == 2
            and all(map(is_number, pair))
        )
    return isinstance(phase, str) and "wall" in line and _are_numbers(line, *_TIMES)


def is_sound_point(line: Line) -> bool:
    """Returns whether the fields of a point of a curve have their types, and its time is known."""
    return "time" in line and is_sound_epoch(line)


def is_sound_epoch(line: Line) -> bool:
    """Returns whether the fields of an epoch have their types."""
    logs, rate = line.get("logs") or {}, line.get("learning_rate")
    return (
        _are_numbers(line, "time", "fit", "trained", "epoch", "step", "batch")
        # what Keras does not know is null
        and all(line.get(name) is None or is_number(line[name]) for name in _LENGTHS)
        and isinstance(logs, dict)
        # a loss may be NaN
        and all(
            isinstance(value, float) or is_number(value)
            for value in (*logs.values(), *(() if rate is None else (rate,)))
        )
    )


def is_sound_sample(line: Line) -> bool:
    """Returns whether the fields of a sample of a process and its machine have their types."""
    machine = line.get("machine")
    if machine is not None:
        gpus = machine.get("gpus", []) if isinstance(machine, dict) else None
        if not isinstance(gpus, list) or not all(isinstance(gpu, dict) for gpu in gpus):
            return False
        # what a container does not tell is null
        told = {name: value for name, value in machine.items() if value is not None}
        if "number" not in told or not _are_numbers(told, *(told.keys() - {"gpus"})):
            return False
    return "time" in line and _are_numbers(line, "time", "cpu_seconds", "memory", "rank", "trained")


def without_odd_members(request: Line) -> dict[str, Any]:
    """Returns a request without members of other types than those that a launcher writes."""
    kinds = {"program": dict, "options": dict, "versions": dict, "hosts": list}
    return {
        name: value
        for name, value in request.items()
        if value is None or isinstance(value, kinds.get(name, object))
    }


def _are_numbers(line: Line, *names: str) -> bool:
    return all(is_number(line[name]) for name in names if name in line)


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
    times = {name: found[name] for name in ("began", "ended") if is_number(found.get(name))}
    outcome = found.get("outcome", {})
    sound = {"outcome": outcome} if isinstance(outcome, dict) and outcome else {}
    if len(times) < len({"began", "ended"} & found.keys()) or not isinstance(outcome, dict):
        damaged.append(path)
    return times | sound
