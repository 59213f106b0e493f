"""Entry points of other packages: found by name, loaded once they are asked for, and errors that name them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from syrtos import entry_points
from syrtos.errors import ConfigurationError

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs packages, each with one entry point, into a folder that Python searches."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(package: str, group: str, point: str, text: str = "") -> None:
        facts = tmp_path / f"{package}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(f"[{group}]\n{point}\n")
        (tmp_path / f"{package}.py").write_text(text)
        entry_points._of_path.cache_clear()

    return add


def test_what_a_package_names_is_loaded(install: Install) -> None:
    install("toy_a", "syrtos.toys", "one = toy_a:THING", "THING = 7")
    assert entry_points.names("syrtos.toys") == ["one"]
    assert entry_points.load("syrtos.toys", "one") == 7


def test_an_error_names_the_package(install: Install) -> None:
    install("toy_b", "syrtos.toys", "one = toy_b:THING", "raise RuntimeError('needs numpy<1')")
    assert entry_points.names("syrtos.toys") == ["one"]
    with pytest.raises(ConfigurationError, match=r"of toy_b, .* RuntimeError: needs numpy<1"):
        entry_points.load("syrtos.toys", "one")


def test_a_name_of_two_packages_is_refused(install: Install) -> None:
    install("toy_c", "syrtos.toys", "one = toy_c:THING", "THING = 1")
    install("toy_d", "syrtos.toys", "one = toy_d:THING", "THING = 2")
    assert entry_points.names("syrtos.toys") == ["one"]
    with pytest.raises(ConfigurationError, match=r"Two packages .* toy_c:THING and toy_d:THING"):
        entry_points.load("syrtos.toys", "one")


def test_what_is_no_instance_is_refused(install: Install) -> None:
    install("toy_e", "syrtos.toys", "one = toy_e:THING", "THING = 7")
    assert entry_points.load_instance("syrtos.toys", "one", int) == 7
    with pytest.raises(ConfigurationError, match=r"instance of `pathlib\S*Path`. It names 7"):
        entry_points.load_instance("syrtos.toys", "one", Path)
