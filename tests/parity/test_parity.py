"""Every case, in one process and on two workers: the same weights and the same logs; on three, every third case (`make parity`: all).

Servers and three workers get every third case, for the rest of a step is that of `test_keras_3`; servers with Keras 2 get those that differ in the
optimizer. One case of six is in the quick tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import registry
import table

CURRENT = registry.CASES
LEGACY = [name for name in CURRENT if name not in registry.KERAS3_ONLY]
SERVED = [name for name in CURRENT if name != "gradient_accumulation"]  # servers refuse to clip what is accumulated
SERVED_KERAS_2 = [
    "sequential", "shuffled", "custom_train_step_two_optimizers", "steps_per_execution", "train_on_batch", "clipnorm", "global_clipnorm",
    "weight_decay", "ema", "learning_rate_schedule", "mixed_float16", "embedding_small_adagrad_clipped", "embedding_adam",
    "reduce_lr_on_plateau",
]  # fmt: skip
KERAS_2 = ("test_keras_2", "test_keras_2_on_two_parameter_servers")
LEGACY_ENV = {"TF_USE_LEGACY_KERAS": "1"}
KERAS_3 = ("test_keras_3", "test_keras_3_on_three_workers", "test_two_parameter_servers_without_staleness")
TOGETHER = ("--ps", "2", "--staleness", "0")
Rows = dict[str, list[float]]


def some_quick(names: Sequence[str], quick: Iterable[str] = ()) -> list[Any]:
    """The names as parameters, all slow but those of ``quick``."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> Rows:
    return table.measure(registry.chosen(request, KERAS_3[0]), [2], references=registry.chosen(request, *KERAS_3))


@pytest.fixture(scope="module")
def rows_of_three(request: pytest.FixtureRequest) -> Rows:
    return table.measure(registry.chosen(request, KERAS_3[1]), [3], references=registry.chosen(request, *KERAS_3))


@pytest.fixture(scope="module")
def legacy_rows(request: pytest.FixtureRequest) -> Rows:
    return table.measure(
        registry.chosen(request, KERAS_2[0]), [2], LEGACY_ENV, references=registry.chosen(request, *KERAS_2)
    )


@pytest.fixture(scope="module")
def served_rows(request: pytest.FixtureRequest) -> Rows:
    names = registry.chosen(request, KERAS_3[2])
    return table.measure(names, [2], flags=TOGETHER, references=registry.chosen(request, *KERAS_3))


@pytest.fixture(scope="module")
def served_legacy_rows(request: pytest.FixtureRequest) -> Rows:
    names = registry.chosen(request, KERAS_2[1])
    return table.measure(names, [2], LEGACY_ENV, TOGETHER, registry.chosen(request, *KERAS_2))


def check(rows: Rows, name: str) -> None:
    assert rows[name][0] <= registry.TOLERANCE.get(name, table.BOUND)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", some_quick(CURRENT, CURRENT[::6]))
def test_keras_3(rows: Rows, name: str) -> None:
    check(rows, name)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", some_quick(CURRENT[1::3]))
def test_keras_3_on_three_workers(rows_of_three: Rows, name: str) -> None:
    check(rows_of_three, name)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", some_quick(LEGACY))
def test_keras_2(legacy_rows: Rows, name: str) -> None:
    check(legacy_rows, name)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", some_quick(SERVED[::3]))
def test_two_parameter_servers_without_staleness(served_rows: Rows, name: str) -> None:
    check(served_rows, name)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", some_quick(SERVED_KERAS_2))
def test_keras_2_on_two_parameter_servers(served_legacy_rows: Rows, name: str) -> None:
    check(served_legacy_rows, name)
