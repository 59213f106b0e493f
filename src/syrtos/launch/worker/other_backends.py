"""The backend to choose where Keras's default, TensorFlow, is not installed."""

from __future__ import annotations

import importlib.util

_NAMES = {"jax": "JAX", "torch": "PyTorch"}


def propose_backend(command: str) -> str:
    """Returns a sentence, without its full stop, on how to run a command with another backend; empty without one."""
    there = next((name for name in _NAMES if importlib.util.find_spec(name)), None)
    return f"{_NAMES[there]} is installed: `KERAS_BACKEND={there} {command}`" if there else ""
