"""One service for each file of tests, started as a user starts it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sdks import Service, serving, started_plainly


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with two workers, and nothing in it."""
    with serving(tmp_path_factory.mktemp("service")) as found:
        yield found


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with scikit-learn's digits, as a channel has them."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("digits")
    images, labels = load_digits(return_X_y=True)
    np.savez(folder / "digits.npz", images=(images / 16).astype("float32"), labels=labels)
    return folder


@pytest.fixture(scope="session")
def plain_model(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `syrtos run -n 2` makes of the script that jobs train with."""
    return started_plainly(digits, tmp_path_factory.mktemp("plain"), {}) / "digits.keras"
