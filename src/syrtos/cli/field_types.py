"""Comparison of dataclasses that were read from a file with the types of their fields."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def check_fields(made: object) -> None:
    """Compares the values of a dataclass, and of those in it, with the types of their fields.

    Raises:
        TypeError: a value has another type; the text names its field.
    """
    for name, hint in get_type_hints(type(made)).items():
        value = getattr(made, name)
        if not _fits(value, hint):
            raise TypeError(f"`{name}` can't be {value!r}")


def _fits(value: object, hint: Any) -> bool:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is Literal:
        return value in arguments
    if kind in (Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if kind is tuple:
        return isinstance(value, tuple) and all(_fits(each, arguments[0]) for each in value)
    if hint in (int, float):
        return not isinstance(value, bool) and isinstance(value, int | hint)
    if not isinstance(value, hint):
        return False
    if dataclasses.is_dataclass(value):
        check_fields(value)
    return True
