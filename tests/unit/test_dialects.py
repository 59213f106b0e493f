"""The matrix of old names says what is there."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from syrtos import dialects
from syrtos.dialects import registry
from syrtos.dialects.dialect import Dialect
from syrtos.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
MODULES = {name: module for each in registry.OURS for name, module in each.serves.items()}
MATRIX: dict[str, Any] = tomllib.loads((Path(dialects.__file__).parent / "matrix.toml").read_text())
SERVED = [
    (module, name, verdict)
    for dialect in ("horovod", "smdistributed")
    for module, names in MATRIX[dialect]["names"].items()
    for name, verdict in names.items()
]
TENSORFLOW = [
    (place.removeprefix("tf."), name)
    for place, names in MATRIX["tf_distribute"]["names"].items()
    for name in names
    if not place.endswith("Strategy")
]


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize(("module", "name", "verdict"), SERVED)
def test_a_name_is_there_unless_it_is_refused(module: str, name: str, verdict: str) -> None:
    assert re.match(r"same$|differs: .|refused: .", verdict)
    found = hasattr(importlib.import_module(MODULES[module]), name)
    assert found or verdict.startswith("refused")


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("module", sorted({module for module, _, _ in SERVED}))
def test_no_public_name_is_left_out(module: str) -> None:
    public = getattr(importlib.import_module(MODULES[module]), "__all__", [])
    listed = {name for other, name, _ in SERVED if other == module}
    assert set(public) <= listed


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize(("place", "name"), TENSORFLOW)
def test_names_of_tensorflow_exist(place: str, name: str) -> None:
    import tensorflow as tf

    found: Any = tf
    for part in f"{place}.{name}".split("."):
        found = getattr(found, part)


@pytest.mark.needs("tensorflow")
def test_every_served_strategy_is_listed() -> None:
    from syrtos.dialects import tf_distribute

    listed = {f"{place}.{name}" for place, name in TENSORFLOW}
    assert {f"{place}.{name}" for place, name in tf_distribute.SERVED} <= listed
    assert {f"distribute.cluster_resolver.{name}" for name in tf_distribute.RESOLVERS} <= listed


@pytest.mark.needs("tensorflow")
def test_names_of_estimators_are_there_and_no_others() -> None:
    from syrtos_estimator import names

    listed = MATRIX["estimator"]["names"]["tf.estimator"]
    whole = names.namespace()
    found = {
        f"{name}.{inner}" if inner else name
        for name, value in vars(whole).items()
        for inner in (vars(value) if isinstance(value, SimpleNamespace) else [""])
    }
    assert found == set(listed)
    for name in MATRIX["estimator"]["names"]["tf.estimator.Estimator"]:
        assert hasattr(whole.Estimator, name)


@pytest.mark.needs("tensorflow")
def test_names_of_coordinators_are_there() -> None:
    from syrtos.dialects import parameter_server

    listed = MATRIX["parameter_server"]["names"]
    served = {f"{place}.{name}" for place, name in parameter_server.STRATEGIES}
    served |= {
        f"{place}.{name}"
        for place in parameter_server.COORDINATORS
        for name in ("ClusterCoordinator", "RemoteValue")
    }
    assert served == {f"distribute.{name}" for name in listed["tf.distribute"]}
    for name in listed["tf.distribute.coordinator.ClusterCoordinator"]:
        assert hasattr(parameter_server.ClusterCoordinator, name)


def test_the_page_is_made_from_it() -> None:
    spec = importlib.util.spec_from_file_location("dialects_page", ROOT / "docs" / "dialects.py")
    assert spec
    assert spec.loader
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert (ROOT / "docs" / "dialects.md").read_text() == page.page()


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The last finder, with a dialect of another package, whose module tries an import that fails."""

    def load(group: str, name: str, kind: type) -> Dialect:
        assert importlib.util.find_spec("none_has_this") is None
        return Dialect("oldtrain", serves={"oldtrain": "json"})

    monkeypatch.setattr(registry.entry_points, "names", lambda group: ["oldtrain"])
    monkeypatch.setattr(registry.entry_points, "load_instance", load)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    found = dialects._Others()
    sys.meta_path.append(found)
    yield found
    sys.modules.pop("oldtrain", None)


@pytest.mark.usefixtures("finder")
def test_a_dialect_of_another_package_serves_what_is_not_installed() -> None:
    assert importlib.util.find_spec("none_has_that") is None
    import json

    assert importlib.import_module("oldtrain") is json
    assert importlib.util.find_spec("none_has_this") is None


def test_packages_need_an_installer() -> None:
    with pytest.raises(ConfigurationError, match="`installer` should be"):
        Dialect("toy", adds_to=("keras",))
