"""The part of torch's backend that needs no model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")


def test_numbers_of_one_kind_and_of_several() -> None:
    from syrtos.keras.torch.variables import Torch

    numbers = Torch.__new__(Torch).numbers
    scalars = [torch.tensor(float(value)) for value in range(5)]
    assert numbers(scalars) == [0.0, 1.0, 2.0, 3.0, 4.0]
    # 1e300 is no number of 32 bits.
    assert numbers([*scalars[:2], torch.tensor(1e300, dtype=torch.float64)]) == [0.0, 1.0, 1e300]
    assert numbers([]) == []
    # A step of the script's own may return arrays of NumPy, which have a device and a dtype too.
    arrays: list[Any] = [np.array(0.5), np.array(0.25)]
    assert numbers(arrays) == [0.5, 0.25]
