"""Records of objects that are not ours: facts that are noted for as long as the object lives.

Such objects are an optimizer, a model or a function of the script. A record is found by the identity
of its object. Nothing is set on the object itself, as Keras tracks and saves the attributes of its
objects, and a script's own class may compare them by their values.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import TypeVar

RecordT = TypeVar("RecordT")


class _Entry:
    """The records of one object, by their classes."""

    def __init__(self, thing: object, forget: Callable[[object], object]) -> None:
        self.records: dict[type, object] = {}
        # An object that can't be referred to weakly lives on, so that no other gets its identity.
        self._thing: object = thing
        with contextlib.suppress(TypeError):
            self._thing = weakref.ref(thing, forget)


_entries: dict[int, _Entry] = {}


def record_of(thing: object, kind: type[RecordT]) -> RecordT:
    """Returns an object's record of a class, to be written: the same one while the object lives.

    Args:
        thing: the object. None has no record: it gets an empty one each time.
        kind: the class, called without arguments for a record that there is not yet. A record that
            refers to its object, even by what it refers to, would keep the object alive for ever.
    """
    if thing is None:
        return kind()
    key, pop = id(thing), _entries.pop
    entry = _entries.get(key)
    if entry is None:
        entry = _entries.setdefault(key, _Entry(thing, lambda _: pop(key, None)))
    record = entry.records.get(kind)
    if record is None:
        record = entry.records.setdefault(kind, kind())
    assert isinstance(record, kind)
    return record


def read_record(thing: object, kind: type[RecordT]) -> RecordT:
    """Returns an object's record of a class, to be read: an empty one, not kept, if it has none."""
    entry = _entries.get(id(thing))
    record = entry.records.get(kind) if entry else None
    return record if isinstance(record, kind) else kind()
