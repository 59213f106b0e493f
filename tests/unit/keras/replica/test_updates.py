"""What is noted of an optimizer: by its identity, and of each update while it is made."""

from __future__ import annotations

import dataclasses
import gc

import pytest

from syrtos.keras.replica import updates


class Plain:
    pass


@dataclasses.dataclass
class ByValue:
    rate: float = 0.1


class Slotted:
    __slots__ = ("rate",)


@pytest.mark.parametrize("kind", [Plain, ByValue, Slotted])
def test_each_optimizer_has_its_own_record(kind: type) -> None:
    one, other = kind(), kind()
    updates.record_of(one).is_equal = True
    assert updates.record_of(one).is_equal
    assert not updates.record_of(other).is_equal


def test_a_record_ends_with_its_optimizer() -> None:
    before = len(updates._records)
    optimizer = Plain()
    updates.record_of(optimizer).is_equal = True
    assert len(updates._records) == before + 1
    del optimizer
    gc.collect()
    assert len(updates._records) == before


def test_nothing_is_noted_of_no_optimizer() -> None:
    updates.record_of(None).is_equal = True
    assert not updates.record_of(None).is_equal


def test_an_update_is_found_by_its_optimizer_while_it_is_made() -> None:
    outer, inner = Plain(), Plain()
    with updates.update(outer, [1, 2]) as one:
        with updates.update(inner, [3]) as other:
            assert updates.update_of(outer) is one
            assert updates.update_of(inner) is other
            with other.taking_as_given():
                assert updates.update_of(inner).is_reduced
            assert not other.is_reduced
        assert not updates.update_of(inner).variables
    assert not updates.update_of(outer).variables


def fail_in_update(optimizer: Plain) -> None:
    with updates.update(optimizer, [1]):
        raise KeyError


def test_an_update_that_fails_is_over() -> None:
    optimizer = Plain()
    with pytest.raises(KeyError):
        fail_in_update(optimizer)
    assert not updates.update_of(optimizer).variables
