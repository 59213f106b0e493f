"""Keras's and Horovod's own tests on two workers: `python tests/upstream/run.py keras|horovod|horovod-keras2 [CHECKOUT] [--only TEXT]`.

Keras's are run in one process as well, and count where they pass there. Without a checkout they are those of the installed
package. Nothing of them is kept here. Tests that fail are run
again among themselves in fresh worlds, and that counts: a failure may come from an earlier one.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_HERE = Path(__file__).resolve().parent
# What the tests import and syrtos does not, from the Makefile; and what each run leaves.
SITE = _HERE.parent.parent / ".venv-upstream"
_SIZE = 2


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tests of a project.

    Attributes:
        patterns: their files, under the checkout's root.
        goal: the share of them that is to pass on workers.
        plain: whether they mean something in one process; then only those that pass there count.
        paths: folders under the root that they import modules from.
        env: variables that are set for them.
    """

    patterns: Sequence[str]
    goal: float
    plain: bool = True
    paths: Sequence[str] = ()
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)


_KERAS = [
    "trainers/trainer",
    "trainers/compile_utils",
    "callbacks/*",
    "optimizers/*",
    "saving/saving_lib",
    "models/model",
]
_KERAS += ["losses/*loss*", "metrics/*"]

SUITES = {
    "keras": Suite(
        patterns=[f"keras/src/{name}_test.py" for name in _KERAS],
        goal=0.95,
    ),
    "horovod": Suite(
        patterns=[f"test/parallel/test_tensorflow{name}.py" for name in ("", "_process_sets", "*_keras", "*_keras_process_sets")],
        goal=0.90,
        plain=False,
        paths=["test/utils"],
    ),
    # Horovod's are written for Keras 2: those that use Keras are run with it too.
    "horovod-keras2": Suite(
        patterns=["test/parallel/test_tensorflow*_keras.py", "test/parallel/test_tensorflow*_keras_process_sets.py"],
        goal=0.90,
        plain=False,
        paths=["test/utils"],
        env={"TF_USE_LEGACY_KERAS": "1"},
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Result:
    """How a test ended: passed, failed or skipped, and what it said."""

    outcome: str
    message: str = ""


Results = dict[str, Result]
_ORDER = ("failed", "passed", "skipped")
_NOT_RUN = Result("failed", "The workers did not run this test.")
_NOT_ENDED = Result("failed", "A rank did not end this test.")


def main() -> int:
    """Runs a suite and prints how it compares; 1 if too few tests pass on workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument(
        "root", nargs="?", type=Path, help="a checkout, or an unpacked source distribution"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="files whose path has this text in it"
    )
    chosen = parser.parse_args()
    suite = SUITES[chosen.suite]
    root = (chosen.root or _installed(chosen.suite)).resolve()
    files = [
        path
        for pattern in suite.patterns
        for path in sorted(root.glob(pattern))
        if chosen.only in str(path)
    ]
    if not files:
        sys.exit(
            f"{root} has none of {', '.join(suite.patterns)}: give a checkout of {chosen.suite} with its tests."
        )
    runner = Runner(SITE / "runs" / chosen.suite, root, suite)
    plain = runner.run(files, size=1) if suite.plain else {}
    workers = dict.fromkeys(plain, _NOT_RUN) | runner.run(files, size=_SIZE)
    counted = (
        [test for test in plain if plain[test].outcome == "passed"]
        if suite.plain
        else _run(workers)
    )
    failures = [test for test in counted if workers[test].outcome == "failed"]
    workers |= runner.run(
        [path for path in files if _holds(root, path, failures)], _SIZE, only=failures
    )
    share = report(counted, "pass in one process" if suite.plain else "are run", workers)
    if not suite.plain:
        _report_skipped(workers)
    return int(share < suite.goal)


class Runner:
    """Runs test files in worlds, and reads how their tests ended."""

    def __init__(self, folder: Path, root: Path, suite: Suite) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder
        self._root = root
        search = [
            *(str(root / path) for path in suite.paths),
            str(SITE),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
        self._env = (
            os.environ
            | suite.env
            | {"PYTHONPATH": os.pathsep.join(search), "TF_CPP_MIN_LOG_LEVEL": "3"}
        )
        self._worlds = 0

    def run(self, files: Sequence[Path], size: int, only: Sequence[str] = ()) -> Results:
        """Runs the files of each folder in one world, and what a world that ended early has left in another."""
        results: Results = {}
        for folder in dict.fromkeys(path.parent for path in files):
            arguments = [str(path) for path in files if path.parent == folder]
            code = -1
            while code:
                code, ended = self._world(arguments, size, results, only)
                results |= ended
                if code and not ended:
                    sys.exit(f"No test ran; see {self._log()}")
        return results

    def _world(
        self, arguments: Sequence[str], size: int, done: Iterable[str], only: Iterable[str]
    ) -> tuple[int, Results]:
        self._worlds += 1
        folder = self._log().parent
        (folder / "cwd").mkdir(parents=True)
        (folder / "done.txt").write_text("\n".join(done))
        (folder / "only.txt").write_text("\n".join(only))
        driver = [str(_HERE / "driver.py"), str(folder), f"--rootdir={self._root}", *arguments]
        options = [
            "-n",
            str(size),
            "--oversubscribe",
            "--timeout",
            "60",
            "--run-dir",
            str(folder / "run"),
        ]
        command = [
            sys.executable,
            *(["-m", "syrtos", "run", *options] if size > 1 else []),
            *driver,
        ]
        with self._log().open("w") as log:
            code = subprocess.run(
                command,
                env=self._env,
                cwd=folder / "cwd",
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        ended = _read(folder, size)
        print(
            f"{folder.name}: {len(ended)} tests on {size} worker{'s' * (size > 1)}, exit code {code}",
            flush=True,
        )
        return code, ended

    def _log(self) -> Path:
        return self._folder / f"world-{self._worlds}" / "log.txt"


def report(tests: Sequence[str], counted: str, workers: Results) -> float:
    """Prints a table by file and the tests that fail on workers; returns the share that passes. ``counted`` says which they are."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        by_file[test.partition("::")[0]].append(test)
    print(f"\n| file | {counted} | pass on workers | ratio |\n|---|---:|---:|---:|")
    for name, group in [*sorted(by_file.items()), ("all", list(tests))]:
        passed = sum(workers[test].outcome == "passed" for test in group)
        print(f"| {name} | {len(group)} | {passed} | {passed / len(group):.1%} |")
    print("\nFailed on workers:")
    for test in tests:
        if workers[test].outcome != "passed":
            print(f"  {test}\n    {_first_words(workers[test].message)}")
    return sum(workers[test].outcome == "passed" for test in tests) / len(tests)


def _report_skipped(workers: Results) -> None:
    """Prints how many tests of each file skip themselves, and what they say."""
    skipped = Counter(
        (test.partition("::")[0], r.message)
        for test, r in workers.items()
        if r.outcome == "skipped"
    )
    print("\nSkip themselves:")
    for (name, message), number in sorted(skipped.items()):
        print(f"  {name}: {number}: {message}")


def _first_words(message: str) -> str:
    """The first line that pytest marks as an error's, or the message's last."""
    errors = [line[1:].strip() for line in message.splitlines() if line.startswith("E ")]
    return next(filter(None, errors), message.rpartition("\n")[2])


def _run(results: Results) -> list[str]:
    return [test for test, result in results.items() if result.outcome != "skipped"]


def _holds(root: Path, path: Path, tests: Sequence[str]) -> bool:
    return any(root / test.partition("::")[0] == path for test in tests)


def _read(folder: Path, size: int) -> Results:
    """How the tests of a world ended: failed where they failed or did not end on a rank."""
    ranks = [_read_rank(folder / f"{rank}.jsonl") for rank in range(size)]
    results: Results = {}
    for test in dict.fromkeys(test for rank in ranks for test in rank):
        found = [rank.get(test, _NOT_ENDED) for rank in ranks]
        worst = min(_ORDER.index(result.outcome) for result in found)
        candidates = [result for result in found if result.outcome == _ORDER[worst]]
        results[test] = next(
            (result for result in candidates if result is not _NOT_ENDED), candidates[0]
        )
    return results


def _read_rank(path: Path) -> Results:
    told = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {
        line["test"]: Result(line["outcome"], line["message"]) if "outcome" in line else _NOT_ENDED
        for line in told
    }


def _installed(project: str) -> Path:
    return Path(str(importlib.metadata.distribution(project).locate_file("")))


if __name__ == "__main__":
    sys.exit(main())
