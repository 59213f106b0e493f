"""The patches of Keras 2: the installed version has all that they replace, and the core finds them."""

from __future__ import annotations

import pytest

from syrtos import entry_points
from syrtos.keras.patching import Patch

pytestmark = pytest.mark.needs("tf_keras")


def test_the_core_finds_them_by_their_entry_point() -> None:
    found = entry_points.load(entry_points.KERAS_VERSIONS, "tf_keras")
    assert found.__name__ == "syrtos_keras2.patches"


def patches() -> list[Patch]:
    found = entry_points.load(entry_points.KERAS_VERSIONS, "tf_keras")
    return [*found.LOSSES, *found.OPTIMIZERS, *found.MODEL, *found.FILES]


def test_keras_2_has_what_they_replace() -> None:
    lacking = [f"{each.owner}.{each.name}" for each in patches() if each.find_owner() is None]
    assert lacking == []
    assert len(patches()) > 30


def test_each_says_why() -> None:
    assert [each.name for each in patches() if len(each.why.split()) < 4] == []
