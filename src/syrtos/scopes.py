"""Context variables that are set inside of a `with` block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

ValueT = TypeVar("ValueT")


@contextlib.contextmanager
def set_within(variable: ContextVar[ValueT], value: ValueT) -> Iterator[ValueT]:
    """Sets a context variable inside of the `with` block, and its value from before at the end."""
    before = variable.get()
    variable.set(value)
    try:
        yield value
    finally:
        # Not by `reset`, which raises in another thread or task: one may close a tape, or a generator,
        # that another has opened.
        variable.set(before)
