"""The native API in real worlds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensors

from syrtos.testing import WorldFailed, run_world


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "check",
    [
        tensors.exchanges,
        tensors.slices,
        tensors.gradients,
        tensors.loops,
        tensors.process_sets,
        tensors.many_process_sets,
    ],
)
def test_tensors(check: Callable[[], str], size: int) -> None:
    assert run_world(size, check) == ["ok"] * size


def fails_on_one() -> None:
    import syrtos

    if syrtos.rank() == 1:
        raise ValueError("only here")


def test_run_world_reports_a_failing_worker() -> None:
    with pytest.raises(WorldFailed, match="only here"):
        run_world(2, fails_on_one)
