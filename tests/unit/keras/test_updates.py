"""An update, which is found by its optimizer while it is made."""

from __future__ import annotations

import pytest

from syrtos.keras import updates


class Plain:
    pass


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
