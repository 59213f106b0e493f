"""What `make dist` finds wrong with a wheel, and with the tags of its commit."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dist() -> ModuleType:
    """The program of `make dist`, as a module."""
    spec = importlib.util.spec_from_file_location("dist", ROOT / ".ci" / "dist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_file_of_the_package_and_no_other_is_in_the_wheel(
    dist: ModuleType, tmp_path: Path
) -> None:
    package = tmp_path / "src" / "own"
    (package / "static").mkdir(parents=True)
    for name in ("__init__.py", "static/page.css", "README.md"):
        (package / name).write_text("")
    expected = dist.files_of(package)
    assert expected == {"own/__init__.py", "own/static/page.css"}
    good = ["own/__init__.py", "own/static/page.css", "own-1.dist-info/METADATA"]
    assert list(dist.content_faults(good, expected)) == []
    lacks, beside = dist.content_faults(["own/__init__.py", "tests/test_own.py"], expected)
    assert lacks.startswith("The wheel lacks own/static/page.css: name it in ")
    assert beside.startswith("The wheel has tests/test_own.py")


@pytest.mark.parametrize(
    ("tags", "faults"),
    [([], 0), (["v1.2.0", "good"], 0), (["v1.2.1"], 1), (["v1.2.0", "v1.3.0"], 1)],
)
def test_the_tag_of_a_release_is_its_version(
    dist: ModuleType, tags: list[str], faults: int
) -> None:
    assert len(list(dist.tag_faults(tags, Version("1.2.0")))) == faults


def test_the_data_of_the_package_is_declared() -> None:
    """A quick part of what `make dist` checks."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-data"
    ]["*"]
    packages = [path.parent for path in (ROOT / "src").glob("syrtos*/__init__.py")]
    assert len(packages) == 7
    declared = {
        path for package in packages for pattern in patterns for path in package.glob(pattern)
    }
    data = {
        path
        for package in packages
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".md")
    }
    assert data <= declared


def test_versions_with_hashes_are_those_of_the_tests() -> None:
    def versions(name: str) -> dict[str, str]:
        found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", (ROOT / name).read_text(), re.MULTILINE)
        return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}

    hashed, pinned = versions("constraints-hashed.txt"), versions("constraints.txt")
    assert hashed["tensorflow"]
    assert {package: pinned[package] for package in hashed if package in pinned} == {
        package: version for package, version in hashed.items() if package in pinned
    }, "`make hashes`"
