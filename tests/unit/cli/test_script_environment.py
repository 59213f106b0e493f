"""The variables that a script names, and which of them have changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from syrtos.cli.script_environment import changed_names, fingerprints
from syrtos.launch.program import Program, parse

SCRIPT = """
import os
from os import environ as e
import local.settings

NAME = "BY_CONSTANT"

def setting(name, default):
    return int(os.environ.get(name, default))

os.environ["SUBSCRIPT"], os.getenv("GETENV"), "CONTAINED" in e, e.pop("POPPED", None)
os.environ[NAME], setting("BY_FUNCTION", 3), [os.environ[each] for each in ("IN_LOOP",)]
os.getenv("API_TOKEN"), "not a name", f"{NAME}_X"
"""
READ = {"SUBSCRIPT", "GETENV", "CONTAINED", "POPPED", "BY_CONSTANT", "BY_FUNCTION", "IN_LOOP"}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "__init__.py").touch()
    (tmp_path / "local" / "settings.py").write_text('import os; os.getenv("OF_MODULE")')
    (tmp_path / "train.py").write_text(SCRIPT)
    return parse(["train.py"])


def env(value: str, *without: str) -> dict[str, str]:
    names = {*READ, "OF_MODULE", "API_TOKEN", "OTHER"} - {*without}
    return dict.fromkeys(names, value)


def test_all_that_the_script_names_is_compared(program: Program) -> None:
    kept = fingerprints(program, env("1"))
    assert changed_names(program, env("1"), kept) == []
    assert changed_names(program, env("2"), kept) == sorted({*READ, "OF_MODULE"})


def test_what_is_set_or_no_longer_set_has_changed(program: Program) -> None:
    assert changed_names(program, env("1", "GETENV"), fingerprints(program, env("1"))) == ["GETENV"]
    assert changed_names(program, env("1"), fingerprints(program, env("1", "GETENV"))) == ["GETENV"]


def test_no_value_and_no_secret_is_kept(program: Program) -> None:
    first, second = (json.dumps(fingerprints(program, env("visible"))) for _ in range(2))
    assert "visible" not in first
    assert "API_TOKEN" not in first
    assert first != second  # equal values of two runs are not seen to be equal
    assert fingerprints(program, {"GETENV": "\udcff"})["digests"]


def test_a_script_that_was_changed(program: Program) -> None:
    kept = fingerprints(program, {"GETENV": "1"})
    Path("train.py").write_text('import os; os.getenv("NEW")')
    assert changed_names(program, {"GETENV": "2", "NEW": "1"}, kept) == ["GETENV", "NEW"]
    Path("train.py").write_text("not Python")
    assert changed_names(program, {"GETENV": "1", "NEW": "1"}, kept) == []
    Path("train.py").unlink()
    assert fingerprints(program, {"GETENV": "1"})["digests"] == {}


def test_modules_and_runs_of_older_versions(program: Program) -> None:
    module = parse(["-m", "local.settings"])
    assert list(fingerprints(module, env("1"))["digests"]) == ["OF_MODULE"]
    assert fingerprints(parse(["-m", "json.tool"]), env("1"))["digests"] == {}
    assert changed_names(program, env("1"), {}) == []
