"""Runs another project's tests on each worker, side by side: `syrtos run -n 2 driver.py FOLDER PYTEST_ARGUMENT ...`, or plain.

Each rank writes what it starts and how it ended to FOLDER/RANK.jsonl, and begins the next test when all ranks have ended this
one. A rank whose test failed while another waits for it in an exchange ends the world: the runner goes on in a fresh one. Tests
named in FOLDER/done.txt are left out; if FOLDER/only.txt exists, so are those that it does not name.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

# Seconds a failed rank waits for the others to end the test.
_PATIENCE = 10.0
WORLD_ENDED = 75


class Lockstep:
    """A pytest plugin that keeps the ranks in the same test."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self._folder = folder
        self._rank = rank
        self._size = size
        self._outcome = ("passed", "")
        self._tests = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leaves out what has been run."""
        done, only = _names(self._folder / "done.txt"), _names(self._folder / "only.txt")
        items[:] = [
            item for item in items if item.nodeid not in done and (not only or item.nodeid in only)
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Runs a test, and waits for the other ranks."""
        self._outcome = ("passed", "")
        self._write(test=item.nodeid)
        result = yield
        self._write(test=item.nodeid, outcome=self._outcome[0], message=self._outcome[1])
        self._tests += 1
        self._wait_for_others()
        return result

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that can't be imported counts as a failed test."""
        if report.failed:
            self._write(test=report.nodeid, outcome="failed", message=report.longreprtext[-3000:])
            self._tests += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps the worst of a test's phases, with the end of its text."""
        if report.failed:
            self._outcome = ("failed", report.longreprtext[-3000:])
        elif report.skipped and self._outcome[0] == "passed":
            self._outcome = (
                "skipped",
                str(report.longrepr[2] if isinstance(report.longrepr, tuple) else ""),
            )

    def _write(self, **line: str) -> None:
        with (self._folder / f"{self._rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _wait_for_others(self) -> None:
        """Ends the process where the ranks are known to be out of step."""
        started = time.monotonic()
        while True:
            outcomes = [
                outcome for rank in range(self._size) if (outcome := self._outcome_of(rank))
            ]
            if len(outcomes) == self._size:
                break
            if "failed" in outcomes and time.monotonic() - started > _PATIENCE:
                os._exit(WORLD_ENDED)
            time.sleep(0.005)
        if "failed" in outcomes and len(set(outcomes)) > 1:
            os._exit(WORLD_ENDED)

    def _outcome_of(self, rank: int) -> str | None:
        """How the last test ended on ``rank``; None if it has not yet."""
        if rank == self._rank:
            return self._outcome[0]
        path = self._folder / f"{rank}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        ends = [line for line in lines if '"outcome"' in line and line.endswith("}")]
        return json.loads(ends[self._tests - 1])["outcome"] if len(ends) >= self._tests else None


def main(folder: Path, arguments: list[str]) -> None:
    """Runs the tests; how they ended is in the folder, so the exit code only tells of tests that could not be collected."""
    rank, size = int(os.environ.get("PMI_RANK", "0")), int(os.environ.get("PMI_SIZE", "1"))
    own = [f"--basetemp={folder / f'tmp-{rank}'}", "-p", "no:cacheprovider", "-c", os.devnull]
    limits = [
        "--timeout=300",
        "--timeout-method=thread",
        "-q",
        "--no-header",
        "--tb=short",
        "--continue-on-collection-errors",
    ]
    code = pytest.main([*own, *limits, *arguments], plugins=[Lockstep(folder, rank, size)])
    if code not in (
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ):
        sys.exit(int(code))


def _names(path: Path) -> set[str]:
    return set(path.read_text().splitlines()) if path.exists() else set()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
