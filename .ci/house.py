"""Measures the source text of a package, and fails where a figure is worse than its limit: ``house.py PACKAGE LIMITS``.

LIMITS is a TOML file. ``[limits]`` has the largest value of each figure, ``riddles`` the words with which no docstring opens, and ``participles`` the words
that name no function. Where a figure has become better than its limit, the limit is to be lowered.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def trees(package: Path) -> Iterator[tuple[Path, str, ast.Module]]:
    """Yields each file of the package with its text and its syntax tree."""
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield path, text, ast.parse(text)


def opens_with(docstring: str, words: Collection[str]) -> bool:
    """Returns whether the first word of a docstring is one of ``words``."""
    found = re.match(r"[A-Za-z]+", docstring.strip())
    return bool(found) and found[0].lower() in words


def annotations(tree: ast.Module) -> Iterator[str]:
    """Yields each annotation of arguments, results and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield ast.unparse(node.annotation)
        elif isinstance(node, _FUNCTIONS) and node.returns is not None:
            yield ast.unparse(node.returns)


def measure(package: Path, riddles: Collection[str], participles: Collection[str]) -> dict[str, float]:
    """Returns the figures of a package by their names; parts are in percent."""
    docstrings = opened = functions = named = annotated = of_any = lines = comments = wide = longest = globals_ = 0
    for _, text, tree in trees(package):
        rows = text.splitlines()
        lines, longest = lines + len(rows), max(longest, len(rows))
        comments += sum(row.lstrip().startswith("#") for row in rows)
        wide += sum(len(row) > 100 for row in rows)
        found = list(annotations(tree))
        annotated, of_any = annotated + len(found), of_any + sum(bool(re.search(r"\bAny\b", one)) for one in found)
        for node in ast.walk(tree):
            globals_ += isinstance(node, ast.Global)
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Module)) and (docstring := ast.get_docstring(node)):
                docstrings, opened = docstrings + 1, opened + opens_with(docstring, riddles)
            if isinstance(node, _FUNCTIONS):
                functions, named = functions + 1, named + (node.name.strip("_") in participles)
    return {
        "docstrings that open as a riddle, %": 100 * opened / docstrings,
        "functions named by a lone participle or adverb, %": 100 * named / functions,
        "annotations with Any, %": 100 * of_any / annotated,
        "lines without a comment, %": 100 - 100 * comments / lines,
        "lines of more than 100 columns, %": 100 * wide / lines,
        "global statements": globals_,
        "lines of the longest file": longest,
    }


def main() -> int:
    """Prints the figures, and returns 1 where one is over its limit."""
    package, path = map(Path, sys.argv[1:])
    asked = tomllib.loads(path.read_text())
    figures = measure(package, set(asked["riddles"]), set(asked["participles"]))
    worse = [name for name, value in figures.items() if value > asked["limits"][name] + 1e-9]
    for name, value in figures.items():
        print(f"{value:8.2f}  (at most {asked['limits'][name]:g})  {name}" + "  <- worse" * (name in worse))
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
