"""Every case, in one process and on two workers: the same weights and the same logs; on three, every third case (`make parity`: all)."""

from __future__ import annotations

import cases
import pytest
import table

CURRENT = list(cases.CASES)
LEGACY = [name for name in cases.CASES if name not in cases.KERAS3_ONLY]

# Servers refuse to clip what is accumulated. Every third case: the rest of a step is that of `test_keras_3`.
SERVED = [name for name in CURRENT if name != "gradient_accumulation"][::3]


@pytest.fixture(scope="module")
def rows() -> dict[str, list[float]]:
    return table.measure(CURRENT, [2])


@pytest.fixture(scope="module")
def rows_of_three() -> dict[str, list[float]]:
    return table.measure(CURRENT[1::3], [3])


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
    assert rows[name][0] <= cases.TOLERANCE.get(name, table.BOUND)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CURRENT[1::3])
def test_keras_3_on_three_workers(rows_of_three: dict[str, list[float]], name: str) -> None:
    assert rows_of_three[name][0] <= cases.TOLERANCE.get(name, table.BOUND)


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
