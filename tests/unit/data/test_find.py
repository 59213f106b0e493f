"""Which files a data set has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from syrtos.data.cache import Cache
from syrtos.data.find import find
from syrtos.data.names import folder_of, is_data, matches
from syrtos.errors import ConfigurationError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data, files about it, and copies that a tool has made."""
    for name in (
        "b.csv",
        "a.csv",
        "_SUCCESS",
        ".hidden.csv",
        "below/c.csv",
        ".ipynb_checkpoints/a.csv",
        "_noise_/d.csv",
    ):
        path = tmp_path / "d" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")
    return tmp_path / "d"


def found(folder: Path, *patterns: str) -> list[str]:
    files = find([str(folder / pattern) for pattern in patterns], Cache(folder / "cache"))
    return [str(Path(file.name).relative_to(folder)) for file in files]


def test_a_folder_is_all_data_below_it(folder: Path) -> None:
    assert found(folder, ".") == ["_noise_/d.csv", "a.csv", "b.csv", "below/c.csv"]


def test_a_folder_that_was_named_may_be_hidden(folder: Path) -> None:
    assert found(folder, ".ipynb_checkpoints") == [".ipynb_checkpoints/a.csv"]
    assert found(folder, ".ipynb_checkpoints/*") == [".ipynb_checkpoints/a.csv"]


def test_a_file_that_several_patterns_match_is_there_once(folder: Path) -> None:
    assert found(folder, "b.csv", "*.csv", "a.csv") == ["b.csv", "a.csv"]


@pytest.mark.parametrize(
    "pattern", ["*.csv", "**", "**/*.csv", "*/*", "below/*", "?.csv", "[ab].csv", "**/c.csv"]
)
def test_remote_patterns_mean_what_local_ones_do(folder: Path, pattern: str) -> None:
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    assert sorted(name for name in names if is_data(name) and matches(name, pattern)) == sorted(
        found(folder, pattern)
    )


@pytest.mark.parametrize(
    ("pattern", "fixed"),
    [
        ("train/*.csv", "train/"),
        ("*.csv", ""),
        ("a/b/", "a/b/"),
        ("a/**/c", "a/"),
        ("a/b[1]/c?", "a/"),
        ("", ""),
    ],
)
def test_the_folder_of_a_pattern(pattern: str, fixed: str) -> None:
    assert folder_of(pattern) == fixed


@pytest.mark.parametrize("url", ["s3://without/train/*.tfrecord", "az://without/x"])
def test_a_store_without_its_package_says_what_to_install(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match="pip install obstore"):
        find([url], Cache(tmp_path))
