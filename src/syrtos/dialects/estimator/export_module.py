"""The module `tensorflow.estimator.export`."""

from __future__ import annotations

from typing import Any

from syrtos.dialects.estimator import names


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # the import system asks for them
        raise AttributeError(name)
    return getattr(names.namespace().export, name)
