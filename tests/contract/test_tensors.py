"""The native API in real worlds."""

from __future__ import annotations

import importlib

import pytest

from syrtos.testing import WorldFailed, run_world

CHECKS = ("exchanges", "slices", "gradients", "loops", "process_sets")


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize(
    ("check", "size"),
    [
        *((check, size) for check in CHECKS for size in (2, 3)),
        ("many_process_sets", 2),
        pytest.param("many_process_sets", 3, marks=pytest.mark.long),
    ],
)
def test_tensors(check: str, size: int) -> None:
    # Not imported at the top: each process of pytest that only looks for its tests would import TensorFlow for five seconds.
    tensors = importlib.import_module("tensors")
    assert run_world(size, getattr(tensors, check)) == ["ok"] * size


def fails_on_one() -> None:
    import syrtos

    if syrtos.rank() == 1:
        raise ValueError("only here")


def test_run_world_reports_a_failing_worker() -> None:
    with pytest.raises(WorldFailed, match="only here"):
        run_world(2, fails_on_one)
