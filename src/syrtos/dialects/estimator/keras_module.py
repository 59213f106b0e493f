"""The module `tensorflow.keras.estimator`."""

from __future__ import annotations

from syrtos.dialects.estimator import names


def __getattr__(name: str) -> object:
    # The import system asks for `__path__` and its like, and has to learn that they are not there.
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(names.keras_namespace(), name)
