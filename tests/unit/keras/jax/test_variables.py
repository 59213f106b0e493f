"""The part of JAX's backend that needs no model."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("jax")

# In an interpreter of its own: the backend of the one that tests may be another.
SCRIPT = """
import jax.numpy as jnp, numpy as np
from syrtos.keras.jax.variables import Jax

numbers = Jax.__new__(Jax).numbers
assert numbers([]) == []
assert numbers([jnp.float32(3), np.float32(0.5)]) == [3.0, 0.5]
many = [jnp.float32(value) for value in range(150)]
assert numbers(many) == [float(value) for value in range(150)]
"""


def test_few_numbers_and_many() -> None:
    subprocess.run(
        [sys.executable, "-c", SCRIPT],
        check=True,
        env={"KERAS_BACKEND": "jax", "PATH": ""},
        timeout=120,
    )
