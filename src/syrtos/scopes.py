"""Values that hold for one thread inside of a context, such as the step that it computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

ValueT = TypeVar("ValueT")


@contextlib.contextmanager
def set_within(variable: ContextVar[ValueT], value: ValueT) -> Iterator[ValueT]:
    """Sets a context variable within the context, gives the value, and resets the variable."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
