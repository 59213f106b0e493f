"""Values that hold for a thread, or a task of asyncio, inside of a context, such as its step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

ValueT = TypeVar("ValueT")


@contextlib.contextmanager
def set_within(variable: ContextVar[ValueT], value: ValueT) -> Iterator[ValueT]:
    """Sets a context variable within the context, gives the value, and sets the one from before."""
    before = variable.get()
    variable.set(value)
    try:
        yield value
    finally:
        # Not by a token, which only the thread that has set the value could use: a tape, or a
        # generator that holds the context, may be closed by another one.
        variable.set(before)
