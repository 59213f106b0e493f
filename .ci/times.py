"""Sums up how long a run of `.ci/run` took: ``times.py BUILD EARLIER``.

Reads what the run left in BUILD: stages.txt (a line for each stage: seconds, name), the JUnit file of each tier of tests, and reruns.txt (tests
that were run twice). Prints the stages and the 25 slowest tests beside the seconds of the file EARLIER, where that has them, and writes the
same table without those to BUILD/times.txt: copied over EARLIER, it is what the next run is compared with.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

SLOWEST = 25


def stages_of(folder: Path) -> dict[str, float]:
    """Seconds by stage, in the order in which they ran."""
    path = folder / "stages.txt"
    pairs = (
        (line.split(maxsplit=1) for line in path.read_text().splitlines()) if path.exists() else ()
    )
    return {name: float(seconds) for seconds, name in pairs}


def tests_of(folder: Path) -> dict[str, float]:
    """Seconds of each test by name, its setup included."""
    cases = (
        case
        for path in sorted(folder.glob("*.xml"))
        for case in ElementTree.parse(path).iter("testcase")
    )
    return {
        f"{c.get('classname', '').replace('.', '/')}::{c.get('name')}": float(c.get("time", 0))
        for c in cases
    }


def slowest_of(tests: Mapping[str, float]) -> dict[str, float]:
    """The tests that took longest, in that order."""
    return dict(sorted(tests.items(), key=lambda test: -test[1])[:SLOWEST])


def table(title: str, seconds: Mapping[str, float]) -> list[str]:
    """A heading and a line for each name: seconds, name."""
    return [f"# {title}", *(f"{value:7.0f}  {name}" for name, value in seconds.items())]


def earlier(path: Path) -> dict[str, float]:
    """Seconds by name of an earlier table, stages and tests alike."""
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {name: float(seconds) for seconds, name in pairs}


def beside(lines: list[str], before: Mapping[str, float]) -> list[str]:
    """The lines of a table with the seconds of an earlier run behind each that it had."""
    names = [line.split(maxsplit=1)[-1] for line in lines]
    return [
        f"{line}  (was {before[name]:.0f})" if name in before else line
        for line, name in zip(lines, names, strict=True)
    ]


def main() -> int:
    """Prints and writes the tables."""
    folder, reference = map(Path, sys.argv[1:])
    stages, tests = stages_of(folder), tests_of(folder)
    lines = table(f"seconds of each stage, {sum(stages.values()):.0f} in all", stages)
    lines += table(f"the {SLOWEST} slowest of {len(tests)} tests", slowest_of(tests))
    (folder / "times.txt").write_text("\n".join(lines) + "\n")
    reruns = folder / "reruns.txt"
    twice = sorted(set(reruns.read_text().splitlines())) if reruns.exists() else []
    defects = [
        f"# run twice, {len(twice)} tests: each is a defect",
        *(f"         {name}" for name in twice),
    ]
    print("\n".join([*beside(lines, earlier(reference)), *defects]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
