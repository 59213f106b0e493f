"""The names and bounds of parity cases, read from the text of the scripts that hold them: importing those imports TensorFlow."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

# XLA compiles in a third of the time (at level 0 in less, but single rows are then rounded by 4e-8).
QUICK_XLA = "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"


def _text_of(name: str) -> list[ast.stmt]:
    return ast.parse((HERE / f"{name}.py").read_text()).body


def _decorated(statements: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Functions with the decorator that registers them."""
    for found in statements:
        for decorator in getattr(found, "decorator_list", []):
            if isinstance(found, ast.FunctionDef) and isinstance(decorator, ast.Name):
                yield found.name, decorator.id


def _assigned(statements: Sequence[ast.stmt], name: str) -> ast.expr:
    for found in statements:
        targets = (
            found.targets if isinstance(found, ast.Assign) else [getattr(found, "target", None)]
        )
        value = getattr(found, "value", None)
        if value is not None and any(
            isinstance(target, ast.Name) and target.id == name for target in targets
        ):
            return value
    raise KeyError(name)


def _groups(found: ast.expr) -> dict[str, list[str]]:
    """A dictionary of lists of functions, by their names."""
    assert isinstance(found, ast.Dict)
    keys = [ast.literal_eval(key) for key in found.keys if key is not None]
    return {
        key: [name.id for name in ast.walk(value) if isinstance(name, ast.Name)]
        for key, value in zip(keys, found.values, strict=True)
    }


_KINDS = dict(
    pair
    for name in ("cases", "mixed_rows", "changing_steps", "own_loops")
    for pair in _decorated(_text_of(name))
)
CASES = [name for name, kind in _KINDS.items() if kind in ("case", "keras3")]
KERAS3_ONLY = {name for name, kind in _KINDS.items() if kind == "keras3"}
TOLERANCE: dict[str, float] = ast.literal_eval(_assigned(_text_of("cases"), "TOLERANCE"))

_DIALECTS = _text_of("dialects")
GROUPS = _groups(_assigned(_DIALECTS, "GROUPS"))
GROUPS_OF_KERAS3: Sequence[str] = ast.literal_eval(_assigned(_DIALECTS, "KERAS3_ONLY"))
TOLERANCE_OF_DIALECTS: dict[str, float] = ast.literal_eval(_assigned(_DIALECTS, "TOLERANCE"))


# They call TensorFlow, hold strings or sparse tensors, or ask for what Keras has on TensorFlow alone.
_NEED_TENSORFLOW = {
    "added_loss", "batchnorm_synchronized", "custom_train_step", "custom_train_step_in_tf_function", "custom_train_step_two_optimizers",
    "custom_train_step_with_sums", "custom_train_step_without_keras_loss", "planned_words", "sparse_batches", "words_on_batch",
    "words_without_unknown_ones", "batches_with_a_table", "step_of_a_sum", "step_that_clips_by_hand", "step_that_is_aware_of_sharpness",
    "step_with_a_penalty_on_input_gradients", "step_that_assigns_weights_by_hand", "step_of_a_layer_that_call_does_not_use",
    "numbers_in_variables_that_count_as_trainable", "step_that_takes_its_rows_from_a_static_shape", "step_that_draws_and_mixes_rows",
    "term_that_begins_with_an_epoch", "term_of_each_third_step", "step_that_decides_by_its_loss", "first_batch_of_one_row", "step_with_a_state_in_python",
    "training_function_of_its_own",
    "stateful_layer_of_one_row", "loss_without_a_reduction", "step_that_returns_vectors", "step_that_draws_from_an_iterator_of_its_own",
    "compiled_step_of_layers_that_train_themselves", "rows_of_a_table_that_stand_once", "data_of_unknown_length",
}  # fmt: skip
_WITHOUT_TENSORFLOW = [
    name for name in CASES if name not in _NEED_TENSORFLOW and not name.startswith("own_loop")
]


@dataclasses.dataclass(frozen=True)
class Framework:
    """What Keras computes with.

    Attributes:
        env: the environment that chooses it.
        cases: the cases that it can run.
        bound: the largest relative difference from one process; `TOLERANCE` lists the cases with another.
    """

    env: Mapping[str, str]
    cases: Sequence[str]
    bound: float = 1e-5

    def allows(self, name: str) -> float:
        """The bound of one case."""
        return TOLERANCE.get(name, self.bound)


FRAMEWORKS = {
    "TensorFlow": Framework({}, CASES),
    "Keras 2": Framework({"TF_USE_LEGACY_KERAS": "1"}, [name for name in CASES if name not in KERAS3_ONLY]),
    # In float64, where rounding differs by 1e-15: in float32 training amplifies the order of a sum to 4e-4 in the longest case. Dropout
    # and BatchNormalization too must be one process's.
    "JAX": Framework(
        {"KERAS_BACKEND": "jax", "KERAS_HOME": str(HERE / "float64"), "JAX_ENABLE_X64": "1", "XLA_FLAGS": QUICK_XLA},
        _WITHOUT_TENSORFLOW, 1e-9,
    ),
    # Keras computes in float32 on torch, whatever it is told. It refuses `steps_per_execution` there, and its stateful layers have no gradient.
    "torch": Framework({"KERAS_BACKEND": "torch"}, [n for n in _WITHOUT_TENSORFLOW if n not in ("steps_per_execution", "stateful_layer")], 3e-5),
}  # fmt: skip


def in_tiers(
    names: Sequence[str], quick: Sequence[str] = (), slow: Sequence[str] | None = None
) -> list[Any]:
    """The names as parameters: those of ``quick`` for `make test`, of ``slow`` (None: all others) for `make test-slow`, the rest for `make test-long`."""
    others = names if slow is None else slow
    return [
        pytest.param(
            name,
            marks=() if name in quick else pytest.mark.slow if name in others else pytest.mark.long,
        )
        for name in names
    ]


def chosen(request: pytest.FixtureRequest, *tests: str, **params: Any) -> list[str]:
    """The cases that this run of pytest asks these functions of the requesting module for, with these parameters, each once."""
    items: list[Any] = [item for item in request.session.items if item.path == request.path]
    calls = [item.callspec.params for item in items if item.originalname in tests]
    return list(dict.fromkeys(call["name"] for call in calls if params.items() <= call.items()))
