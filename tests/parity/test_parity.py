"""Every case, in one process and on two workers: the same weights and the same logs; on three, every third case (`make parity`: all).

Servers and three workers get every third case, for the rest of a step is that of `test_keras_3`. One case of six is in the quick tests.
Keras 2 has a file of its own, since files are what two processes of pytest divide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import registry
import table

CURRENT = registry.CASES
SERVED = [name for name in CURRENT if name != "gradient_accumulation"]  # servers refuse to clip what is accumulated
KERAS_3 = ("test_keras_3", "test_keras_3_on_three_workers", "test_two_parameter_servers_without_staleness")


def some_quick(names: Sequence[str], quick: Iterable[str] = ()) -> list[Any]:
    """The names as parameters, all slow but those of ``quick``."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> table.Rows:
    return table.measure(registry.chosen(request, KERAS_3[0]), [2], references=registry.chosen(request, *KERAS_3))


@pytest.fixture(scope="module")
def rows_of_three(request: pytest.FixtureRequest) -> table.Rows:
    return table.measure(registry.chosen(request, KERAS_3[1]), [3], references=registry.chosen(request, *KERAS_3))


@pytest.fixture(scope="module")
def served_rows(request: pytest.FixtureRequest) -> table.Rows:
    names = registry.chosen(request, KERAS_3[2])
    return table.measure(names, [2], flags=table.TOGETHER, references=registry.chosen(request, *KERAS_3))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", some_quick(CURRENT, CURRENT[::6]))
def test_keras_3(rows: table.Rows, name: str) -> None:
    table.check(rows, name)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", some_quick(CURRENT[1::3]))
def test_keras_3_on_three_workers(rows_of_three: table.Rows, name: str) -> None:
    table.check(rows_of_three, name)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", some_quick(SERVED[::3]))
def test_two_parameter_servers_without_staleness(served_rows: table.Rows, name: str) -> None:
    table.check(served_rows, name)
