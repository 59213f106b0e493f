"""Files of tests whose framework is missing are skipped, and say so."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def conftest() -> ModuleType:
    path = Path(__file__).parents[1] / "conftest.py"
    spec = importlib.util.spec_from_file_location("conftest_of_tests", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("error", "is_skipped"),
    [
        ("E   ModuleNotFoundError: No module named 'tensorflow'", True),
        ("E   ModuleNotFoundError: No module named 'tf_keras.layers'", True),
        ("E   ModuleNotFoundError: No module named 'torch.none'", False),
        ("E   ModuleNotFoundError: No module named 'syrtos.none'", False),
        ("E   ImportError: cannot import name 'x'", False),
    ],
)
def test_a_file_that_imports_a_missing_framework_is_skipped(
    conftest: ModuleType, monkeypatch: pytest.MonkeyPatch, error: str, is_skipped: bool
) -> None:
    monkeypatch.setattr(conftest, "_missing_frameworks", lambda: {"tensorflow", "tf_keras"})
    report = SimpleNamespace(failed=True, outcome="failed", longrepr=error)
    collecting = conftest.pytest_make_collect_report(SimpleNamespace(path=Path("test_a.py")))
    next(collecting)
    with pytest.raises(StopIteration) as ended:
        collecting.send(report)
    assert ended.value.value is report
    assert (report.outcome == "skipped") is is_skipped
    assert ("`make test BACKENDS=...` chooses what is" in str(report.longrepr)) is is_skipped
