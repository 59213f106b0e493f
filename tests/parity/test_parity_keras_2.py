"""Every case that Keras 2 has, as in `test_parity`, a sixth of them in `make test-slow`; servers get some in `make test-long`."""

from __future__ import annotations

import pytest
import registry
import table

pytestmark = pytest.mark.timeout(3600)

LEGACY = registry.FRAMEWORKS["Keras 2"]
SERVED = [
    "sequential", "shuffled", "custom_train_step_two_optimizers", "steps_per_execution", "train_on_batch", "clipnorm", "global_clipnorm",
    "weight_decay", "ema", "learning_rate_schedule", "mixed_float16", "embedding_small_adagrad_clipped", "embedding_adam",
    "reduce_lr_on_plateau",
]  # fmt: skip
KERAS_2 = ("test_keras_2", "test_keras_2_on_two_parameter_servers")


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> table.Rows:
    return table.measure(
        registry.chosen(request, KERAS_2[0]),
        [2],
        LEGACY.env,
        references=registry.chosen(request, *KERAS_2),
    )


@pytest.fixture(scope="module")
def served_rows(request: pytest.FixtureRequest) -> table.Rows:
    names = registry.chosen(request, KERAS_2[1])
    return table.measure(names, [2], LEGACY.env, table.TOGETHER, registry.chosen(request, *KERAS_2))


@pytest.mark.parametrize("name", registry.in_tiers(LEGACY.cases, slow=LEGACY.cases[::6]))
def test_keras_2(rows: table.Rows, name: str) -> None:
    table.check(rows, name)


@pytest.mark.parametrize("name", registry.in_tiers(SERVED, slow=()))
def test_keras_2_on_two_parameter_servers(served_rows: table.Rows, name: str) -> None:
    table.check(served_rows, name)
