"""Records of objects: by identity, for as long as the object lives."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref

import pytest

from syrtos.records import read_record, record_of


class Plain:
    pass


@dataclasses.dataclass
class ByValue:
    rate: float = 0.1


class Slotted:
    __slots__ = ("rate",)


@dataclasses.dataclass
class Facts:
    is_equal: bool = False


@dataclasses.dataclass
class OtherFacts:
    number: int = 0


@pytest.mark.parametrize("kind", [Plain, ByValue, Slotted])
def test_each_object_has_its_own_record_of_each_class(kind: type) -> None:
    one, other = kind(), kind()
    record_of(one, Facts).is_equal = True
    assert record_of(one, Facts).is_equal
    assert not record_of(other, Facts).is_equal
    assert record_of(one, OtherFacts) == OtherFacts()
    assert not getattr(one, "__dict__", {}).keys() - {"rate"}


def test_a_record_ends_with_its_object() -> None:
    thing = Plain()
    record = weakref.ref(record_of(thing, Facts))
    assert record() is record_of(thing, Facts)
    del thing
    gc.collect()
    assert record() is None


def test_an_object_in_a_circle_is_collected_with_its_record() -> None:
    thing = Plain()
    vars(thing)["itself"] = thing
    record = weakref.ref(record_of(thing, Facts))
    del thing
    gc.collect()
    assert record() is None


def test_an_object_that_has_no_weak_references_keeps_its_identity_to_itself() -> None:
    numbers = set[int]()
    for _ in range(10):
        thing = Slotted()
        assert not record_of(thing, Facts).is_equal
        record_of(thing, Facts).is_equal = True
        numbers.add(id(thing))
        del thing
    assert len(numbers) == 10


def test_reading_keeps_nothing() -> None:
    class Contents:
        pass

    contents = Contents()
    known, thing = weakref.ref(contents), [contents]
    read_record(thing, Facts).is_equal = True
    assert not read_record(thing, Facts).is_equal
    del contents, thing
    assert known() is None
    other = Plain()
    record_of(other, Facts).is_equal = True
    assert read_record(other, Facts).is_equal


def test_nothing_is_noted_of_none() -> None:
    record_of(None, Facts).is_equal = True
    assert not record_of(None, Facts).is_equal


def test_threads_find_one_record() -> None:
    things, found = [Plain() for _ in range(200)], list[set[int]]()

    def look() -> None:
        found.append({id(record_of(thing, Facts)) for thing in things})

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set[int]().union(*found)) == len(things)
