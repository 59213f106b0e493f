"""Tells what is Keras's own from what a script has made or replaced."""

from __future__ import annotations

import types
from collections.abc import Iterable

from syrtos.own_packages import PACKAGES

_OF_KERAS = ("keras", "tf_keras")


def is_of_keras(kind: object) -> bool:
    """Returns whether a class or a function is Keras's own."""
    function = getattr(kind, "__func__", kind)
    if not isinstance(function, types.FunctionType):
        return (getattr(kind, "__module__", None) or "").partition(".")[0] in _OF_KERAS
    # Not its `__module__`, which `functools.wraps` copies.
    package = str(function.__globals__.get("__name__")).partition(".")[0]
    wrapped = vars(function).get("__wrapped__")
    # wrappers of these count as the function of Keras's inside
    if (package == "tensorflow" or is_of_syrtos(package)) and wrapped is not None:
        return is_of_keras(wrapped)
    return package in _OF_KERAS


def is_of_syrtos(module: str) -> bool:
    """Returns whether a module is of syrtos, or of a package beside it, by its name."""
    return module.partition(".")[0] in PACKAGES


def own_methods(owner: object, names: Iterable[str]) -> list[str]:
    """Returns those of ``names`` that the script has assigned on an object of Keras's itself."""
    own = getattr(owner, "__dict__", {})
    return [name for name in names if name in own and not is_of_keras(own[name])]
