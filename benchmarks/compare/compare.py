"""Trains the same three scripts by several systems, and writes the table of docs/compare.md: ``make compare``.

Each system trains each script on two workers; a second run of the convolutional network loses a worker by SIGKILL.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import difflib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from systems import PLAIN, SYSTEMS, System

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPTS = HERE / "scripts"
NAMES = {"cnn": "CNN", "transformer": "transformer", "own_step": "loss over pairs"}
NEXT = ROOT / ".venv-compare" / "bin" / "python"
PAGE = ROOT / "docs" / "compare.md"
_TIMEOUT = 400.0  # seconds of a training
_KILLED_AT = 15  # steps
_ALL_STEPS = 58  # of the convolutional network
# The difference of weights up to which systems count as equal: the rounding of sums.
_SAME = 1e-5
_BEGIN, _END = "<!-- compared -->", "<!-- end of compared -->"


@dataclasses.dataclass(frozen=True)
class Training:
    """A training by one system.

    Attributes:
        code: the first exit code that is not 0; None: it was ended, as it took too long.
        weights: those at the end, by name; empty: none were saved.
        steps: when each step ended, s since the epoch, of each process by its number.
        began: when it was started.
        killed: when a worker was killed; 0: none was.
        output: the last lines of what was printed.
    """

    code: int | None
    weights: Mapping[str, np.ndarray]
    steps: Mapping[int, list[float]]
    began: float
    killed: float
    output: str

    @property
    def first_step(self) -> float:
        """Seconds from the command to the end of the first step."""
        return min((times[0] for times in self.steps.values()), default=np.nan) - self.began

    @property
    def step(self) -> float:
        """The median time of a step of the process that made most, s."""
        times = max(self.steps.values(), key=len, default=[])
        between = [after - before for before, after in itertools.pairwise(times[1:])]
        return statistics.median(between) if between else np.nan


def train(system: System, script: str, folder: Path, kills: bool = False) -> Training:
    """Trains a script of this name in an empty folder."""
    python = NEXT if system.next_keras else Path(sys.executable)
    file = folder / f"{script}.py"
    file.write_text(system.edit((SCRIPTS / f"{script}.py").read_text()))
    env = {
        **os.environ,
        "KERAS_BACKEND": system.backend,
        "PYTHONPATH": str(SCRIPTS),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_ENABLE_X64": "1",
        "PATH": f"{python.parent}:{os.environ['PATH']}",
    }
    began, killed = time.time(), 0.0
    output = (folder / "output.txt").open("wb")
    processes = [
        subprocess.Popen(
            command,
            cwd=folder,
            env={**env, **variables},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        for command, variables in system.commands(file, 2, python)
    ]
    while any(process.poll() is None for process in processes):
        if time.time() - began > _TIMEOUT:
            break
        # a worker is gone: the others end, or wait for ever
        if killed and time.time() - killed > 120:
            break
        if kills and not killed and (victim := _second_worker(folder)):
            os.kill(victim, signal.SIGKILL)
            killed = time.time()
        time.sleep(0.05)
    codes = [process.poll() for process in processes]
    for process in processes:
        _end(process)
    output.close()
    code = None if None in codes else next((code for code in codes if code), 0)
    after = folder / "after.weights.h5"
    return Training(
        code,
        _read(after) if after.exists() else {},
        _steps(folder),
        began,
        killed,
        "\n".join((folder / "output.txt").read_text(errors="replace").splitlines()[-12:]),
    )


def _second_worker(folder: Path) -> int | None:
    """Returns the number of the process that began last, once all have made enough steps."""
    steps = _steps(folder)
    if len(steps) < 2 or min(len(times) for times in steps.values()) < _KILLED_AT:
        return None
    return max(steps, key=lambda number: steps[number][0])


def _steps(folder: Path) -> dict[int, list[float]]:
    found = {}
    for path in folder.glob("steps-*.txt"):
        if times := [float(line) for line in path.read_text().splitlines() if "." in line]:
            found[int(path.stem.partition("-")[2])] = times
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all of its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(path: Path) -> dict[str, np.ndarray]:
    """Returns the weights in a file; none if it is not whole."""
    found: dict[str, np.ndarray] = {}

    def take(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and "optimizer" not in name and "seed" not in name:
            found[name] = np.asarray(item)

    try:
        with h5py.File(path) as file:
            file.visititems(take)
    except OSError:
        return {}
    return found


def difference(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> float:
    """Returns the largest difference of two models' weights; NaN if they can't be compared."""
    if not found or found.keys() != wanted.keys():
        return float("nan")
    return max(float(np.max(np.abs(found[name] - wanted[name]), initial=0.0)) for name in wanted)


def lines_changed(system: System, script: str) -> int:
    """Returns the number of lines that a system wants to have added or written anew."""
    before = (SCRIPTS / f"{script}.py").read_text()
    after = system.edit(before)
    old, new = ([line.strip() for line in text.splitlines()] for text in (before, after))
    return sum(line.startswith("+ ") for line in difflib.ndiff(old, new))


def measure(names: list[str]) -> Iterator[dict[str, Any]]:
    """Yields a line of results for each system and script."""
    plain = {}
    for system in [*PLAIN.values(), *SYSTEMS]:
        if names and system.name not in names and system.name != "one process":
            continue
        if system.next_keras and not NEXT.exists():
            yield {"system": system.name, "backend": system.backend, "missing": str(NEXT)}
            continue
        for script in NAMES:
            with tempfile.TemporaryDirectory() as folder:
                found = train(system, script, Path(folder))
            if system.name == "one process":
                plain[system.backend, script] = found
            yield {
                "system": system.name,
                "backend": system.backend,
                "script": script,
                "lines": lines_changed(system, script),
                "code": found.code,
                "difference": difference(found.weights, plain[system.backend, script].weights),
                "first_step": round(found.first_step, 2),
                "step": round(found.step, 4),
                "output": "" if found.code == 0 else found.output,
            }
        if system.name != "one process":
            with tempfile.TemporaryDirectory() as folder:
                found = train(system, "cnn", Path(folder), kills=True)
            # workers that were started after the kill
            anew = [times for times in found.steps.values() if times[0] > found.killed > 0]
            yield {
                "system": system.name,
                "backend": system.backend,
                "script": "cnn, a worker killed",
                "code": found.code,
                "difference": difference(found.weights, plain[system.backend, "cnn"].weights),
                "next_step": round(min(times[0] for times in anew) - found.killed, 2)
                if anew
                else None,
                "again": max(map(len, anew), default=0) == _ALL_STEPS,
                "output": "" if found.code == 0 else found.output,
            }


def tables(lines: list[dict[str, Any]]) -> str:
    """Returns the lines of `measure` as two tables in Markdown."""
    rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for line in lines:
        rows.setdefault((line["system"], line["backend"]), {})[line["script"]] = line
    names = " | ".join(NAMES.values())
    bars = "---|" * len(NAMES)
    first = [f"| system | lines changed | {names} |", f"|---|---|{bars}"]
    second = [
        f"| system | first step | {names} | a worker is killed |",
        f"|---|---|{bars}---|",
    ]
    for (system, backend), found in rows.items():
        of = [found[script] for script in NAMES]
        name = f"{system} ({backend})"
        if system != "one process":
            differences = " | ".join(_in_words(line["difference"]) for line in of)
            first.append(f"| {name} | {of[0]['lines']} | {differences} |")
        steps = " | ".join(f"{line['step'] * 1e3:.0f} ms" for line in of)
        ending = _ending(found.get("cnn, a worker killed"))
        second.append(f"| {name} | {of[0]['first_step']:.1f} s | {steps} | {ending} |")
    return "\n".join([*first, "", *second])


def _in_words(difference: float) -> str:
    if np.isnan(difference):
        return "did not end well"
    return f"{difference:.0e}" if difference < _SAME else f"**{difference:.1g}**"


def _ending(line: dict[str, Any] | None) -> str:
    """Returns what became of a training whose worker was killed."""
    if line is None:
        return ""
    if np.isnan(line["difference"]):
        return "had not ended after two minutes" if line["code"] is None else "ends with an error"
    how = "begins anew" if line["again"] else "goes on"
    after = f" after {line['next_step']:.1f} s" if line["next_step"] else ""
    return f"{how}{after}; difference {_in_words(line['difference'])}"


def main() -> None:
    """Measures, and prints JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("systems", nargs="*", help="names of systems; default: all")
    parser.add_argument("--lines", type=Path, help="append the lines to this file as well")
    parser.add_argument("--write", type=Path, help="write the tables of such a file into the page")
    chosen = parser.parse_args()
    if chosen.write:
        lines = [json.loads(line) for line in chosen.write.read_text().splitlines()]
        before, begin, rest = PAGE.read_text().partition(_BEGIN)
        after = rest.partition(_END)[2]
        PAGE.write_text(f"{before}{begin}\n\n{tables(lines)}\n\n{_END}{after}")
        return
    for line in measure(chosen.systems):
        text = json.dumps({"day": str(datetime.date.today()), **line})
        print(text, flush=True)
        if chosen.lines:
            with chosen.lines.open("a") as file:
                file.write(text + "\n")


if __name__ == "__main__":
    main()
