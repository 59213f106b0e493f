"""The backend to choose where the package of the one that Keras asks for is not installed."""

from __future__ import annotations

import importlib.util

# The backends of Keras, by their packages, with their names.
NAMES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}


def installed() -> list[str]:
    """Returns the backends of Keras whose packages are installed."""
    return [name for name in NAMES if importlib.util.find_spec(name)]


def propose_backend(absent: str, command: str) -> str:
    """Returns a sentence, without its full stop, on how to run a command without a backend's package.

    The text is empty if no other backend is installed.
    """
    there = next(iter(installed()), None)
    return (
        f"Install it (`pip install {absent}`), or take {NAMES[there]}, which is installed:"
        f" `KERAS_BACKEND={there} {command}`"
        if there
        else ""
    )
