"""The features of a run: which act, in which order, and which are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from syrtos.comm import world
from syrtos.errors import ConfigurationError
from syrtos.keras.features import registry
from syrtos.keras.features.feature import Feature, Fit
from syrtos.settings import Options


class Doubled(Feature):
    def change_gradients(self, update: Any, grads: Sequence[Any]) -> Sequence[Any]:
        return [2 * g for g in grads]


class Counted(Feature):
    def batch_ends(self, fit: Fit, logs: object) -> None:
        pass


@pytest.fixture
def session(no_session: None) -> world.Session:
    return world.init(Options(scale_lr="linear", on_nan="skip"))


def others(monkeypatch: pytest.MonkeyPatch, **kinds: object) -> None:
    monkeypatch.setattr(registry.entry_points, "names", lambda group: sorted(kinds))
    monkeypatch.setattr(registry.entry_points, "load", lambda group, name: kinds[name])


def test_each_of_ours_has_the_name_of_its_file() -> None:
    found = registry.ours()
    assert {kind.__module__.rpartition(".")[2] for kind in found.values()} == set(found)


def test_the_outermost_is_last(session: world.Session) -> None:
    # With `--sync-every` a worker without rows makes no update that `--on-nan` could look at.
    kinds = sorted(registry.ours().values(), key=lambda kind: (kind.nesting, kind.name))
    assert [kind.name for kind in kinds][-1] == "local_steps"
    names = [feature.name for feature in registry.active()]
    assert "finite" in names
    assert "learning_rate" in names
    assert "sharding" not in names


def test_another_package_adds_one(monkeypatch: pytest.MonkeyPatch, session: world.Session) -> None:
    others(monkeypatch, doubled=Doubled)
    assert registry.changes_gradients()
    assert registry.change_gradients(registry.Update(object()), [1, 2]) == [2, 4]
    with pytest.raises(ConfigurationError, match="`doubled`, of another package, acts in steps"):
        registry.refuse_steps("on JAX")


def test_one_that_only_looks_is_not_refused(
    monkeypatch: pytest.MonkeyPatch, session: world.Session
) -> None:
    others(monkeypatch, counted=Counted)
    assert not registry.changes_gradients()
    registry.refuse_steps("on JAX")


@pytest.mark.parametrize("kinds", [{"finite": Counted}, {"none": object}, {"none": 7}])
def test_what_is_no_feature_is_refused(
    monkeypatch: pytest.MonkeyPatch, session: world.Session, kinds: dict[str, object]
) -> None:
    others(monkeypatch, **kinds)
    with pytest.raises(ConfigurationError, match="should name a class on"):
        registry.active()


def test_two_trainings_keep_their_own() -> None:
    one, other = Fit(), Fit()
    kept = one.keep(Counted)
    assert one.find(type(kept)) is kept
    assert other.find(type(kept)) is None
