"""Trainings of packages that extend Keras end on two workers as in one process; `make packages` runs the others."""

from __future__ import annotations

from pathlib import Path

import compare_packages
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (compare_packages.SITE / "ready").exists(),
        reason="the packages are not installed: make packages",
    ),
]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("keras_rs_retrieval", "tensorflow"),
        pytest.param("hgq2_quantized_network", "tensorflow", marks=pytest.mark.long),
        pytest.param("keras_hub_bert", "jax", marks=pytest.mark.long),
        ("bayesflow_posterior", "torch"),
    ],
)
def test_equal_to_one_process(name: str, backend: str, tmp_path: Path) -> None:
    outcome = compare_packages.compare(name, backend, tmp_path / "training")
    assert not outcome.reason
    assert outcome.difference <= compare_packages.TRAININGS[name].tolerance
