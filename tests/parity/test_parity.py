"""Every case, in one process and on workers: the same weights and the same logs."""

from __future__ import annotations

import cases
import pytest
import table

WORLDS = [2, 3]
CURRENT = list(cases.CASES)
LEGACY = [name for name in cases.CASES if name not in cases.KERAS3_ONLY]

# Servers refuse to clip what is accumulated. Every third case: the rest of a step is that of `test_keras_3`.
SERVED = [name for name in CURRENT if name != "gradient_accumulation"][::3]


@pytest.fixture(scope="module")
def rows() -> dict[str, list[float]]:
    return table.measure(CURRENT, WORLDS)


@pytest.fixture(scope="module")
def legacy_rows() -> dict[str, list[float]]:
    return table.measure(LEGACY, [2], {"TF_USE_LEGACY_KERAS": "1"})


@pytest.fixture(scope="module")
def served_rows() -> dict[str, list[float]]:
    return table.measure(SERVED, [2], flags=("--ps", "2", "--staleness", "0"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CURRENT)
def test_keras_3(rows: dict[str, list[float]], name: str) -> None:
    for workers, difference in zip(WORLDS, rows[name], strict=True):
        assert difference <= cases.TOLERANCE.get(name, table.BOUND), f"{workers} workers"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LEGACY)
def test_keras_2(legacy_rows: dict[str, list[float]], name: str) -> None:
    assert legacy_rows[name][0] <= cases.TOLERANCE.get(name, table.BOUND)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SERVED)
def test_two_parameter_servers_without_staleness(served_rows: dict[str, list[float]], name: str) -> None:
    assert served_rows[name][0] <= cases.TOLERANCE.get(name, table.BOUND)
