"""The cases that need no TensorFlow, with Keras on JAX, in one process and on two workers: dropout and BatchNormalization too must be one process's.

In float64, where rounding differs by 1e-15: in float32 training amplifies the order of a sum to 4e-4 in the longest case.
"""

from __future__ import annotations

import json

import pytest
import registry
import table

Rows = dict[str, list[float]]

# They call TensorFlow, hold strings or sparse tensors, or ask for what Keras has on TensorFlow alone.
NEED_TENSORFLOW = {
    "added_loss", "batchnorm_synchronized", "custom_train_step", "custom_train_step_in_tf_function", "custom_train_step_two_optimizers",
    "custom_train_step_with_sums", "custom_train_step_without_keras_loss", "planned_words", "sparse_batches", "words_on_batch",
    "words_without_unknown_ones",
}  # fmt: skip
CASES = [name for name in registry.CASES if name not in NEED_TENSORFLOW and not name.startswith("own_loop")]
QUICK = ("last_batch_of_seven", "gradient_accumulation", "checkpoint_csv_and_reload")
BOUND = 1e-9


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    home = tmp_path_factory.mktemp("keras")
    (home / "keras.json").write_text(json.dumps({"floatx": "float64", "backend": "jax"}))
    env = {"KERAS_BACKEND": "jax", "KERAS_HOME": str(home), "JAX_ENABLE_X64": "1"}
    return table.measure(registry.chosen(request, "test_keras_on_jax"), [2], env)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_keras_on_jax(rows: Rows, name: str) -> None:
    assert rows[name][0] <= registry.TOLERANCE.get(name, BOUND)
