"""The names and bounds of parity cases, read from the text of the scripts that hold them: importing those imports TensorFlow."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def _text_of(name: str) -> list[ast.stmt]:
    return ast.parse((HERE / f"{name}.py").read_text()).body


def _decorated(statements: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Functions with the decorator that registers them."""
    for found in statements:
        for decorator in getattr(found, "decorator_list", []):
            if isinstance(found, ast.FunctionDef) and isinstance(decorator, ast.Name):
                yield found.name, decorator.id


def _assigned(statements: Sequence[ast.stmt], name: str) -> ast.expr:
    for found in statements:
        targets = found.targets if isinstance(found, ast.Assign) else [getattr(found, "target", None)]
        value = getattr(found, "value", None)
        if value is not None and any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return value
    raise KeyError(name)


def _groups(found: ast.expr) -> dict[str, list[str]]:
    """A dictionary of lists of functions, by their names."""
    assert isinstance(found, ast.Dict)
    keys = [ast.literal_eval(key) for key in found.keys if key is not None]
    return {
        key: [name.id for name in ast.walk(value) if isinstance(name, ast.Name)]
        for key, value in zip(keys, found.values, strict=True)
    }


_KINDS = dict(pair for name in ("cases", "own_loops") for pair in _decorated(_text_of(name)))
CASES = [name for name, kind in _KINDS.items() if kind in ("case", "keras3")]
KERAS3_ONLY = {name for name, kind in _KINDS.items() if kind == "keras3"}
TOLERANCE: dict[str, float] = ast.literal_eval(_assigned(_text_of("cases"), "TOLERANCE"))

_DIALECTS = _text_of("dialects")
GROUPS = _groups(_assigned(_DIALECTS, "GROUPS"))
GROUPS_OF_KERAS3: Sequence[str] = ast.literal_eval(_assigned(_DIALECTS, "KERAS3_ONLY"))
TOLERANCE_OF_DIALECTS: dict[str, float] = ast.literal_eval(_assigned(_DIALECTS, "TOLERANCE"))


def chosen(request: pytest.FixtureRequest, *tests: str) -> list[str]:
    """The cases that this run of pytest asks these functions of the requesting module for, each once."""
    items: list[Any] = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in items if item.originalname in tests]
    return list(dict.fromkeys(names))
