"""Cases in one process and on two workers: the same weights and the same logs; on three, every third case (`make parity`: all).

Servers and three workers get every third case, most of them in `make test-long`, for the rest of a step is that of `test_keras_3`. One case of
six is in the quick tests.
Keras 2 has a file of its own, since files are what two processes of pytest divide.
"""

from __future__ import annotations

import dataclasses

import pytest
import registry
import table

TENSORFLOW = registry.FRAMEWORKS["TensorFlow"]
CURRENT = registry.CASES
# What differs from another case in a loss, an optimizer, a callback or a size alone: `make test-long` and `make parity` have them.
LIKE_ANOTHER = {
    "words_without_unknown_ones", "planned_words", "class_weight", "validation_split", "clipnorm", "clipvalue", "weight_decay", "mixed_bfloat16",
    "embedding_adam", "gradient_accumulation_scaled", "reduce_lr_on_plateau", "learning_rate_schedule", "batch_logs", "last_batch_of_one",
    "batches_of_one", "custom_train_step_with_sums", "own_loop_of_losses_by_sample", "regularizers", "py_dataset", "loss_sum", "metrics_of_ratios",
    "early_stopping_restores_best", "every_optimizer", "validation_data_uneven", "tf_data_shuffled", "words_on_batch", "embedding_small_sent_as_table",
    "own_loop_of_a_compiled_model",
    # The slow tier has these with a compiled or a sharded update.
    "custom_train_step_in_tf_function", "custom_train_step_two_optimizers",
}  # fmt: skip
# Servers refuse to clip what is accumulated, and know no class of the script's.
NOT_SERVED = (
    "gradient_accumulation", "gradient_accumulation_by_an_optimizer_of_its_own", "own_loop_clipped_and_accumulated", "optimizer_of_its_own",
)  # fmt: skip
SERVED = [name for name in CURRENT if name not in NOT_SERVED]
KERAS_3 = (
    "test_keras_3",
    "test_keras_3_on_three_workers",
    "test_two_parameter_servers_without_staleness",
    "test_partitioned_steps",
)


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> table.Rows:
    return table.measure(
        registry.chosen(request, KERAS_3[0]), [2], references=registry.chosen(request, *KERAS_3)
    )


@pytest.fixture(scope="module")
def rows_of_three(request: pytest.FixtureRequest) -> table.Rows:
    return table.measure(
        registry.chosen(request, KERAS_3[1]), [3], references=registry.chosen(request, *KERAS_3)
    )


@pytest.fixture(scope="module")
def served_rows(request: pytest.FixtureRequest) -> table.Rows:
    names = registry.chosen(request, KERAS_3[2])
    return table.measure(
        names, [2], flags=table.TOGETHER, references=registry.chosen(request, *KERAS_3)
    )


@pytest.mark.needs("tensorflow")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name",
    registry.in_tiers(
        CURRENT, CURRENT[::6], [name for name in CURRENT if name not in LIKE_ANOTHER]
    ),
)
def test_keras_3(rows: table.Rows, name: str) -> None:
    table.check(rows, name)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", registry.in_tiers(CURRENT[1::3], slow=CURRENT[1::36]))
def test_keras_3_on_three_workers(rows_of_three: table.Rows, name: str) -> None:
    table.check(rows_of_three, name)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name",
    registry.in_tiers(
        SERVED[::3], slow=("sequential", "sample_weight", "embedding_small_adagrad_clipped")
    ),
)
def test_two_parameter_servers_without_staleness(served_rows: table.Rows, name: str) -> None:
    table.check(served_rows, name)


# Updates of dense gradients and of rows, inside of conditions, of two optimizers, and of loops of the script's own.
COMPILED = [
    "custom_train_step_in_tf_function", "custom_train_step_two_optimizers", "run_eagerly", "steps_per_execution", "train_on_batch", "global_clipnorm",
    "optimizers_with_options", "gradient_accumulation_scaled", "loss_scale_overflow", "mixed_float16", "embedding_large_sent_as_rows",
    "embedding_small_adagrad_clipped", "own_loop_clipped_and_accumulated", "every_optimizer",
]  # fmt: skip


@pytest.fixture(scope="module")
def compiled_rows(request: pytest.FixtureRequest) -> table.Rows:
    return table.measure(
        registry.chosen(request, "test_compiled_updates"), [2], flags=("--compile-update", "on")
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name",
    registry.in_tiers(
        COMPILED,
        slow=(
            "custom_train_step_in_tf_function",
            "global_clipnorm",
            "embedding_large_sent_as_rows",
            "optimizers_with_options",
        ),
    ),
)
def test_compiled_updates(compiled_rows: table.Rows, name: str) -> None:
    table.check(compiled_rows, name)


COMPILED_STEPS = [
    "last_batch_of_one", "custom_train_step_two_optimizers", "recurrent_layers", "step_that_draws_and_mixes_rows",
    "draws_that_are_made_once_for_a_batch", "data_of_unknown_length", "own_loop_compiled_by_xla",
]  # fmt: skip
BY_XLA = {"SYRTOS_PARITY_COMPILED": "1"}


@pytest.fixture(scope="module")
def rows_of_compiled_steps(request: pytest.FixtureRequest) -> table.Rows:
    return table.measure(registry.chosen(request, "test_compiled_steps"), [2], BY_XLA)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", registry.in_tiers(COMPILED_STEPS, slow=tuple(COMPILED_STEPS[1:])))
def test_compiled_steps(rows_of_compiled_steps: table.Rows, name: str) -> None:
    """Two workers end where one process does that compiles its steps by XLA."""
    table.check(rows_of_compiled_steps, name)


# Optimizers whose state is divided among the workers, and what reads or stores them.
SHARDED = [
    "custom_train_step_two_optimizers", "run_eagerly", "optimizers_with_options", "loss_scale_overflow", "embedding_large_sent_as_rows",
    "own_loop_clipped_and_accumulated", "ema", "checkpoint_csv_and_reload",
    "every_optimizer",
]  # fmt: skip


@pytest.fixture(
    scope="module", params=["TensorFlow", pytest.param("torch", marks=pytest.mark.long)]
)
def sharded_rows(request: pytest.FixtureRequest) -> tuple[registry.Framework, table.Rows]:
    framework = registry.FRAMEWORKS[request.param]
    asked = registry.chosen(request, "test_sharded_updates", sharded_rows=request.param)
    names = [name for name in asked if name in framework.cases]
    return framework, table.measure(names, [2], framework.env, ("--shard-update",))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name",
    registry.in_tiers(
        SHARDED, slow=("custom_train_step_two_optimizers", "embedding_large_sent_as_rows")
    ),
)
def test_sharded_updates(sharded_rows: tuple[registry.Framework, table.Rows], name: str) -> None:
    framework, rows = sharded_rows
    if name not in framework.cases:
        pytest.skip("it is written for TensorFlow")
    table.check(rows, name, framework)


# Plain SGD, whose steps on shares have the mean of its step on the whole: with data, metrics, callbacks, files and averages of weights around it.
ALONE = [
    "custom_train_step", "run_eagerly", "last_batch_of_seven", "batches_of_one", "planned_words", "sparse_batches", "added_loss", "ema",
    "learning_rate_schedule", "embedding_large_sent_as_rows", "early_stopping_restores_best", "checkpoint_csv_and_reload",
]  # fmt: skip


@pytest.fixture(scope="module")
def rows_of_workers_alone(request: pytest.FixtureRequest) -> table.Rows:
    return table.measure(
        registry.chosen(request, "test_workers_that_train_alone_for_one_step"),
        [2],
        flags=("--sync-every", "1"),
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", registry.in_tiers(ALONE, slow=ALONE[::4]))
def test_workers_that_train_alone_for_one_step(
    rows_of_workers_alone: table.Rows, name: str
) -> None:
    # Weights travel as changes, rounded to float32 in each step.
    table.check(rows_of_workers_alone, name, dataclasses.replace(TENSORFLOW, bound=3e-5))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("keras", ["TensorFlow", pytest.param("Keras 2", marks=pytest.mark.long)])
def test_a_step_compiled_by_xla_on_one_worker(keras: str) -> None:
    name = "compiled_by_xla_after_all"
    framework = registry.FRAMEWORKS[keras]
    table.check(table.measure([name], [1], framework.env), name, framework)
