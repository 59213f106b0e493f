"""Makes each folder's helpers importable by name, skips tests of frameworks that are not installed, sorts long files first, and names failures at once."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

HELPERS = (
    ".",
    "conformance",
    "contract",
    "e2e",
    "faults",
    "packages",
    "parity",
    "unit/data",
    "unit/syrtos_clusters/kubernetes",
    "unit/syrtos_jobs",
    "unit/keras/tensorflow/partition",
    "unit/keras/torch/partition",
    "unit/report",
)
for folder in HELPERS:
    sys.path.insert(0, str(Path(__file__).parent / folder))

from registry import QUICK_XLA  # noqa: E402 - it is found by the lines above

from syrtos.testing import warm  # noqa: E402

# Programs of XLA are tiny here, and compiled for longer than they run.
os.environ.setdefault("XLA_FLAGS", QUICK_XLA)

# A shell starts what runs in its background with SIGINT ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Whether this is one of several processes of pytest-xdist, whose reports another prints.
DIVIDED = "PYTEST_XDIST_WORKER" in os.environ

# The folders with the longest files come first, and those that mostly wait for hosts, or one of them would run alone at the end.
ORDER = {"parity": 0, "test_started_by_others": 1, "faults": 2}

# The packages that a test may lack, by the names that parameters of tests and `needs` have for them.
PACKAGES = {
    "torch": "torch",
    "jax": "jax",
    "JAX": "jax",
    "tensorflow": "tensorflow",
    "TensorFlow": "tensorflow",
    "Keras 2": "tf_keras",
}

FRAMEWORKS = ("tensorflow", "torch", "jax")
# Keras's default is TensorFlow: without it all tests use a framework that is there.
if importlib.util.find_spec("tensorflow") is None:
    for framework in filter(importlib.util.find_spec, FRAMEWORKS):
        os.environ.setdefault("KERAS_BACKEND", framework)


# The zygotes that the processes of pytest-xdist share, and what ends them.
SHARING = contextlib.ExitStack()


def pytest_configure() -> None:
    """Shares one import of the frameworks among all processes of this run."""
    if not DIVIDED:
        SHARING.enter_context(warm.sharing())


def pytest_unconfigure() -> None:
    SHARING.close()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skips a file that imports a missing framework in its first lines."""
    report = yield
    missing = re.search(r"No module named '(\w+)", str(report.longrepr))
    if report.failed and missing and missing[1] in _missing_frameworks():
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: {_reason_of_skip([missing[1]])}")
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs a missing framework; sorts folders, which `--no-loadscope-reorder` keeps in this order."""
    for item in items:
        if missing := sorted(
            name for name in _packages_of(item) if importlib.util.find_spec(name) is None
        ):
            item.add_marker(pytest.mark.skip(reason=_reason_of_skip(missing)))
    items.sort(
        key=lambda item: ORDER.get(item.path.stem, ORDER.get(item.path.parent.name, len(ORDER)))
    )


def _missing_frameworks() -> set[str]:
    return {name for name in PACKAGES.values() if importlib.util.find_spec(name) is None}


def _reason_of_skip(missing: Sequence[str]) -> str:
    return f"{', '.join(missing)} is not installed: `make test BACKENDS=...` chooses what is"


def _packages_of(item: pytest.Item) -> set[str]:
    """The frameworks that a test asks for by a mark `needs("torch")`, or by a parameter with such a name."""
    marked = [name for mark in item.iter_markers("needs") for name in mark.args]
    params = getattr(getattr(item, "callspec", None), "params", {})
    return {
        PACKAGES[name]
        for name in (*marked, *params.values())
        if isinstance(name, str) and name in PACKAGES
    }


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names a test when it fails: a suite that is ended before its end would not say which it was. Lists those that are run twice in build/."""
    if DIVIDED:
        return
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        print(
            f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s): {crash.message if crash else ''}",
            flush=True,
        )
    if report.outcome == "rerun":  # of pytest-rerunfailures
        path = Path(__file__).parents[1] / "build" / "reruns.txt"
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(f"{report.nodeid}\n")
