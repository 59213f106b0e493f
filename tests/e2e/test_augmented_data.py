"""Random numbers and orders that a pipeline of `tf.data` leaves to threads: one process and N workers train on the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import forking

SCRIPT = Path(__file__).parent / "scripts" / "augmented.py"


def trained(folder: Path, kind: str, workers: int) -> dict[str, np.ndarray]:
    out = folder / f"{workers}.npz"
    done = forking.run(forking.syrtos_run(folder / "run", workers, SCRIPT, kind, out))
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(np.load(out))


# In one process the order that is left to threads is not one that workers could have.
@pytest.mark.parametrize(
    ("kind", "worlds"),
    [
        ("records", (1, 2)),
        ("layers", (1, 2)),
        pytest.param("any order", (2, 3), marks=pytest.mark.long),
    ],
)
@pytest.mark.slow
def test_augmentation_is_the_same_on_any_number_of_workers(
    tmp_path: Path, kind: str, worlds: tuple[int, int]
) -> None:
    one, other = (trained(tmp_path, kind, workers) for workers in worlds)
    for name, expected in one.items():
        np.testing.assert_allclose(other[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_python_in_threads_trains(tmp_path: Path) -> None:
    assert np.isfinite(trained(tmp_path, "python", 2)["arr_0"]).all()
