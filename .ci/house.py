"""Measures the source text of packages, and fails where a figure is worse than its limit: ``house.py FOLDER LIMITS``.

LIMITS is a TOML file. ``[limits]`` has the largest value of each figure, ``riddles`` the words with
which no docstring opens, ``participles`` the words that name no function, and ``prescribed`` the
names of classes that other libraries prescribe, which several may have. ``[tokens]`` has the
budget of each folder of the package `syrtos` and of each file beside them, and of each package
beside `syrtos`, which is measured whole. Where a figure has become
better than its limit, the limit is to be lowered.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Methods that change a list, dictionary or set.
_CHANGING = frozenset(
    [
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "setdefault",
        "update",
    ]
)
# A file of fewer lines that one other file alone imports has hardly an idea of its own.
_SMALL = 60
_NO_TOKENS = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


@dataclasses.dataclass(frozen=True)
class File:
    """A file of the package: its module's name, its text and its syntax tree."""

    module: str
    text: str
    tree: ast.Module


# The package of which each folder has a budget.
_CORE = "syrtos"


def files_of(folder: Path) -> list[File]:
    """Returns the files of all packages in a folder, in the order of their paths."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found.append(File(module, text, ast.parse(text)))
    return found


def percent(part: int, whole: int) -> float:
    """Returns a part in percent of the whole."""
    return 100 * part / whole


# -- figures of the text ---------------------------------------------------------------------------


def figures_of_lines(files: Sequence[File]) -> dict[str, float]:
    """Returns the figures about lines."""
    rows = [row for file in files for row in file.text.splitlines()]
    comments = sum(row.lstrip().startswith("#") for row in rows)
    return {
        "lines without a comment, %": 100 - percent(comments, len(rows)),
        "lines of more than 100 columns, %": percent(
            sum(len(row) > 100 for row in rows), len(rows)
        ),
        "lines of the longest file": max(len(file.text.splitlines()) for file in files),
    }


def figures_of_words(files: Sequence[File], asked: Mapping[str, Any]) -> dict[str, float]:
    """Returns the figures about docstrings, names of functions, and annotations."""
    nodes = [node for file in files for node in ast.walk(file.tree)]
    functions = [node for node in nodes if isinstance(node, _FUNCTIONS)]
    documented = [n for n in nodes if isinstance(n, (*_FUNCTIONS, ast.ClassDef, ast.Module))]
    docstrings = [text for node in documented if (text := ast.get_docstring(node))]
    first = [found[0].lower() for text in docstrings if (found := re.match("[A-Za-z]+", text))]
    annotations = [text for node in nodes for text in annotations_of(node)]
    return {
        "docstrings that open as a riddle, %": percent(
            sum(word in asked["riddles"] for word in first), len(docstrings)
        ),
        "functions named by a lone participle or adverb, %": percent(
            sum(f.name.strip("_") in asked["participles"] for f in functions), len(functions)
        ),
        "annotations with Any, %": percent(
            sum(bool(re.search(r"\bAny\b", text)) for text in annotations), len(annotations)
        ),
    }


def annotations_of(node: ast.AST) -> Iterator[str]:
    """Yields the annotation of an argument, a result or a variable."""
    if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
        yield ast.unparse(node.annotation)
    elif isinstance(node, _FUNCTIONS) and node.returns is not None:
        yield ast.unparse(node.returns)


# -- figures of the structure ----------------------------------------------------------------------


def figures_of_structure(files: Sequence[File], prescribed: Sequence[str]) -> dict[str, float]:
    """Returns the figures about names, state and the way from file to file."""
    kinds = collections.Counter(
        node.name for file in files for node in file.tree.body if isinstance(node, ast.ClassDef)
    )
    lines = {file.module: len(file.text.splitlines()) for file in files}
    importers_by_module = importers_of(files)
    small = [
        module
        for module, importers in importers_by_module.items()
        if len(importers) == 1 and lines[module] < _SMALL
    ]
    return {
        "names of several classes": sum(
            count > 1 and name not in prescribed for name, count in kinds.items()
        ),
        "global statements": sum(
            isinstance(node, ast.Global) for file in files for node in ast.walk(file.tree)
        ),
        "names of modules, and attributes of classes, that change": sum(
            len(changed_names(file.tree)) for file in files
        ),
        "calls of world.current()": sum(file.text.count("world.current()") for file in files),
        "marks on objects of frameworks": len(
            {mark for file in files for mark in re.findall(r"_syrtos_[a-z_]+", file.text)}
        ),
        f"files of fewer than {_SMALL} lines with one importer": len(small),
        "modules that one file imports": max(
            imports_by_module(importers_by_module).values(), default=0
        ),
    }


def tokens_of_rooms(files: Sequence[File]) -> dict[str, int]:
    """Returns the number of tokens of each folder and file of `syrtos`, and of each other package."""
    found: collections.Counter[str] = collections.Counter()
    for file in files:
        package, *rest = file.module.split(".")
        room = (rest or ["__init__"]) if package == _CORE else [package]
        tokens = tokenize.generate_tokens(io.StringIO(file.text).readline)
        found[room[0]] += sum(token.type not in _NO_TOKENS for token in tokens)
    return dict(found)


def imports_by_module(importers: Mapping[str, set[str]]) -> dict[str, int]:
    """Returns the number of modules that each module imports, from what `importers_of` gives."""
    return collections.Counter(module for modules in importers.values() for module in modules)


def importers_of(files: Sequence[File]) -> dict[str, set[str]]:
    """Returns for each module the modules that import it."""
    known = {file.module for file in files}
    found: dict[str, set[str]] = {module: set() for module in known}
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                members = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in known else node.module for name in members]
            else:
                continue
            for name in known.intersection(names):
                found[name].add(file.module)
    return found


def changed_names(tree: ast.Module) -> set[str]:
    """Returns the names of a module whose objects its code changes, and the attributes of its classes that it sets."""
    assigned = {
        target.id
        for node in tree.body
        for target in targets_of(node)
        if isinstance(target, ast.Name)
    }
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    found: set[str] = set()
    for node in ast.walk(tree):
        for target in targets_of(node):
            for part in ast.walk(target):
                owner = getattr(part, "value", None)
                if not isinstance(part, ast.Attribute | ast.Subscript):
                    continue
                if isinstance(owner, ast.Name) and isinstance(part.ctx, ast.Store | ast.Del):
                    if owner.id in assigned:
                        found.add(owner.id)
                    elif owner.id in classes and isinstance(part, ast.Attribute):
                        found.add(f"{owner.id}.{part.attr}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id in assigned and node.func.attr in _CHANGING:
                found.add(owner.id)
    return found


def targets_of(node: ast.AST) -> list[ast.expr]:
    """Returns what a statement assigns to, or deletes."""
    if isinstance(node, ast.Assign | ast.Delete):
        return list(node.targets)
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def main() -> int:
    """Prints the figures, and returns 1 where one is over its limit."""
    folder, path = map(Path, sys.argv[1:])
    asked, files = tomllib.loads(path.read_text()), files_of(folder)
    figures = {
        **figures_of_words(files, asked),
        **figures_of_lines(files),
        **figures_of_structure(files, asked["prescribed"]),
    }
    rooms, budgets = tokens_of_rooms(files), asked["tokens"]
    for room in sorted(rooms, key=lambda room: budgets.get(room, 0) - rooms[room])[:3]:
        print(
            f"{rooms[room]:8,}  (at most {budgets.get(room, 0):,}) tokens of {room}, of the three rooms with the least room left"
        )
    core = sum(tokens for room, tokens in rooms.items() if not room.startswith(f"{_CORE}_"))
    print(f"{core:8,}  tokens of {_CORE}, and {sum(rooms.values()) - core:,} of packages beside it")
    over = [room for room, tokens in rooms.items() if tokens > budgets.get(room, 0)]
    if over:
        print(
            f"Over the budget of tokens: {', '.join(over)}. Make it smaller, or raise it in a commit of its own that says what a user gets."
        )
    worse = [name for name, value in figures.items() if value > asked["limits"][name] + 1e-9]
    for name, value in figures.items():
        limit = f"(at most {asked['limits'][name]:g})"
        print(f"{value:9.3f}  {limit:<14}{name}" + "  <- worse" * (name in worse))
    return int(bool(worse or over))


if __name__ == "__main__":
    sys.exit(main())
