"""Names that NumPy, JAX or torch surely lacks, from the text of the installed packages.

Nothing is imported. The modules make names in many ways, but each of these is a word in the
module's file, in its stub (`.pyi`), in a file that it imports with a star, or in the name of a file
beside it. A name that is no such word does not exist. Seen on NumPy 2.3 and 2.5, JAX 0.10 and torch
2.13, where a test holds these words to what the modules really have.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from syrtos.doctor.packages import folder
from syrtos.launch.spelling import closest_name

ROOTS = ("numpy", "jax", "torch")
_LONG = 4  # letters: shorter words are like too many others
_WORD = re.compile(r"[^\W\d]\w*")
_STAR = re.compile(r"^\s*from\s+(\.*)([\w.]*)\s+import\s+\*", re.MULTILINE)
# Lines on which a module's text defines or imports names.
_DEFINES = re.compile(
    r"^(?:def|class) (\w+)|^(\w+)\s*[:=]|^    [\"']?(\w+)[\"']?(?: as \w+)?,$|\bimport (.+)$",
    re.MULTILINE,
)
# Aliases of Python's types that NumPy 1.24 removed.
_OF_PYTHON = ("int", "float", "complex", "object", "str")


def missing_part(path: str) -> str | None:
    """Returns the shortest beginning of a dotted path that does not exist.

    The missing name must be like an existing one, or one that NumPy lists as removed. In all other
    cases the result is None.
    """
    module, *parts = path.split(".")
    for part in parts:
        missing = f"{module}.{part}"
        if missing in expired_names():
            return missing
        # Of these it can't be known from the texts whether they exist.
        if part.startswith("_") or len(part) < _LONG or not _files(module) or not _is_whole(module):
            return None
        if part not in _words(module):
            return missing if suggestion(missing) else None
        module = missing
    return None


def suggestion(path: str) -> str | None:
    """Returns the name in the same module that is most like a path's last word; else None."""
    module, _, word = path.rpartition(".")
    defining = " ".join(
        part for text in _texts(module) for line in _DEFINES.findall(text) for part in line
    )
    near = {name for file in _files(module) for name in _neighbours(file)}
    return closest_name(word, near.union(_WORD.findall(defining)))


@functools.cache
def expired_names() -> Mapping[str, str]:
    """Returns what NumPy says to use in the place of names that it has no more, by their paths."""
    file = (folder("numpy") or Path()) / "_expired_attrs_2_0.py"
    said = {f"numpy.{name}": f"use Python's own `{name}`" for name in _OF_PYTHON}
    for node in ast.parse(file.read_text()).body if file.is_file() else []:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for name, text in ast.literal_eval(node.value).items():
                said[f"numpy.{name}"] = (text[:1].lower() + text[1:]).rstrip(
                    "."
                ) or "NumPy 2.0 removed it"
    return said


@functools.cache
def _is_whole(module: str) -> bool:
    """Returns whether all files that a module imports with a star are text in the same package."""
    return all(
        _files(star) and star.partition(".")[0] == module.partition(".")[0]
        for star in _star_imports(module)
    )


@functools.cache
def _words(module: str) -> frozenset[str]:
    near = {name for file in _files(module) for name in _neighbours(file)}
    return frozenset(near.union(*(_WORD.findall(text) for text in _texts(module))))


@functools.cache
def _texts(module: str) -> tuple[str, ...]:
    """Returns the texts of a module's files, and of those that they import with a star."""
    return tuple(
        file.read_text() for each in (module, *_star_imports(module)) for file in _files(each)
    )


@functools.cache
def _star_imports(module: str) -> tuple[str, ...]:
    """Returns the modules that a module imports with a star, itself or through others."""
    found, waiting = [], [module]
    while waiting:
        each = waiting.pop()
        for file in _files(each):
            package = each if file.stem == "__init__" else each.rpartition(".")[0]
            stars = {_absolute(package, *star) for star in _STAR.findall(file.read_text())} - {
                module,
                *found,
            }
            found += sorted(stars)
            waiting += sorted(stars)
    return tuple(found)


def _absolute(package: str, dots: str, name: str) -> str:
    base = package.split(".")[: len(package.split(".")) - len(dots) + 1] if dots else []
    return ".".join([*base, *filter(None, [name])])


def _files(module: str) -> list[Path]:
    """Returns the file of a module and its stub; none for what is no module."""
    root, *parts = module.split(".")
    base = folder(root)
    if base is None:
        return []
    stem = base.joinpath(*parts)
    ends = [stem / "__init__.py", stem / "__init__.pyi"] + [
        stem.with_suffix(end) for end in (".py", ".pyi") if parts
    ]
    return [path for path in ends if path.is_file()]


def _neighbours(file: Path) -> Iterator[str]:
    """Yields the names of files and folders beside a package's `__init__.py`: maybe submodules."""
    if file.stem == "__init__":
        yield from (path.name.partition(".")[0] for path in file.parent.iterdir())
