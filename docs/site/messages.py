"""Messages of the code: those of its errors by class, and all texts, found in its syntax trees."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from text import prose

from syrtos import errors

SOURCE = Path(errors.__file__).parents[1]
CLASSES = dict(inspect.getmembers(errors, inspect.isclass))

_READ = (ast.Call, ast.Constant, ast.JoinedStr, ast.BinOp)

# What stands in a text for a value that is known when the program runs.
VALUE = "…"


def by_class() -> str:
    """Returns a section for each class of errors: its meaning, and the messages that it is raised with."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, message in of_errors():
        found[name].add(message)
    lines = ["```text", *_tree(), "```", ""]
    for name, error in sorted(
        CLASSES.items(), key=lambda item: (errors.__doc__ or "").index(item[0])
    ):
        lines += [f"## {name}", "", inspect.getdoc(error) or "", ""]
        lines += [
            f"- {prose(message)}"
            for message in sorted(found[name])
            if any(map(str.isalpha, message))
        ] + [""]
    return "\n".join(lines)


def of_errors() -> Iterator[tuple[str, str]]:
    """Yields class and message of each error that is made somewhere in the code."""
    for node in _nodes():
        if isinstance(node, ast.Call) and node.args:
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if name in CLASSES:
                yield name, _text(node.args[0])


def texts() -> set[str]:
    """Returns every text in the code, with `VALUE` for each value in it."""
    return {
        _text(node)
        for node in _nodes()
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp)
    }


@functools.cache
def _nodes() -> tuple[ast.AST, ...]:
    trees = (ast.parse(path.read_text()) for path in sorted(SOURCE.glob("syrtos*/**/*.py")))
    return tuple(node for tree in trees for node in ast.walk(tree) if isinstance(node, _READ))


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            _text(part) if isinstance(part, ast.Constant) else VALUE for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return VALUE


def _tree() -> list[str]:
    """Returns the picture of the classes in the docstring of `syrtos.errors`."""
    return [line[4:] for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
