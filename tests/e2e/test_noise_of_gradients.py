"""The gradient noise scale of real runs against its definition: the variance of the gradients of all samples over the square of their mean."""

from __future__ import annotations

from pathlib import Path

import pytest

import forking
from syrtos.report import noise_scale
from syrtos.report.read import load

SCRIPT = Path(__file__).parent / "scripts" / "noisy_regression.py"


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("backend", "optimizer", "off"),
    [
        ("tensorflow", "SGD", 0.2),
        pytest.param("torch", "SGD", 0.2, marks=pytest.mark.long),
        pytest.param("jax", "Adam", 0.35, marks=pytest.mark.slow),  # from its moments
    ],
)
def test_the_noise_scale_is_that_of_all_samples(
    tmp_path: Path, backend: str, optimizer: str, off: float
) -> None:
    done = forking.run(
        forking.syrtos_run(tmp_path, 2, SCRIPT, optimizer), {"KERAS_BACKEND": backend}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("noise scale"))
    truth = float(line.split()[-1])
    found = noise_scale.describe_noise_scale(load(tmp_path))
    assert found["scale"] == pytest.approx(truth, rel=off), found["text"]
    assert found["batch"] == 64


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_moments_that_are_split_over_workers_are_left_alone(tmp_path: Path) -> None:
    """Reading one takes all workers, and rank 0 alone writes epochs down."""
    script = SCRIPT.with_name("split_kernels.py")
    done = forking.run(forking.syrtos_run(tmp_path, 2, script), {"KERAS_BACKEND": "jax"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained" in done.stdout
    assert "scale" not in noise_scale.describe_noise_scale(load(tmp_path))
