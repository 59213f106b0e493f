"""The cases that need no TensorFlow, with Keras on JAX and on torch, in one process and on two workers.

XLA compiles each of JAX's for seconds, in three processes: `make test-slow` has every twelfth one of them, and every sixth of torch's,
`make test-long` the rest.
"""

from __future__ import annotations

import pytest
import registry
import table

JAX, TORCH = registry.FRAMEWORKS["JAX"], registry.FRAMEWORKS["torch"]
QUICK = ("last_batch_of_seven", "gradient_accumulation", "checkpoint_csv_and_reload")


@pytest.fixture(scope="module")
def rows_of_jax(request: pytest.FixtureRequest) -> table.Rows:
    return table.measure(registry.chosen(request, "test_keras_on_jax"), [2], JAX.env)


@pytest.fixture(scope="module")
def rows_of_torch(request: pytest.FixtureRequest) -> table.Rows:
    return table.measure(registry.chosen(request, "test_keras_on_torch"), [2], TORCH.env)


@pytest.mark.needs("jax", "tensorflow")  # whose pipelines the cases read
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name", registry.in_tiers(JAX.cases, QUICK, [*JAX.cases[::12], "recurrent_layers"])
)
def test_keras_on_jax(rows_of_jax: table.Rows, name: str) -> None:
    table.check(rows_of_jax, name, JAX)


@pytest.mark.needs("torch", "tensorflow")  # whose pipelines the cases read
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", registry.in_tiers(TORCH.cases, QUICK, TORCH.cases[1::6]))
def test_keras_on_torch(rows_of_torch: table.Rows, name: str) -> None:
    table.check(rows_of_torch, name, TORCH)
