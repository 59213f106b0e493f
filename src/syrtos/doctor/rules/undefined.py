"""A rule about names that are not defined."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator

from pyflakes import checker, messages

from syrtos.doctor.finding import Finding, Severity, at
from syrtos.doctor.program import ScriptProgram
from syrtos.doctor.rules.names import is_tried
from syrtos.doctor.script import Script
from syrtos.launch.spelling import closest_name

# Ways in which a script may define names that no statement shows.
_UNSEEN = re.compile(
    r"\b(exec|globals|locals|vars|execfile|run_path|get_ipython|display)\s*\(|\bbuiltins\b|__builtins__|__dict__"
)
_USUAL = {
    "np": "import numpy as np",
    "tf": "import tensorflow as tf",
    "pd": "import pandas as pd",
    "plt": "import matplotlib.pyplot as plt",
    "keras": "import keras",
    "layers": "from keras import layers",
    "jnp": "import jax.numpy as jnp",
    "torch": "import torch",
    "jax": "import jax",
    "partial": "from functools import partial",
    "Path": "from pathlib import Path",
}


def undefined_names(program: ScriptProgram) -> Iterator[Finding]:
    """Finds names that are surely not defined where they are read, each once for every file."""
    for script in program.scripts:
        if _UNSEEN.search(script.text):
            continue
        defined, seen = _defined_names(script), set[str]()
        for node in _find_undefined(script):
            if node.id not in seen and not _may_be_defined(script, node, defined):
                seen.add(node.id)
                yield at(
                    script,
                    node,
                    "undefined-name",
                    Severity.BREAKS,
                    f"`{node.id}` is not defined (NameError)",
                    _advise(node.id, defined),
                )


def _find_undefined(script: Script) -> Iterator[ast.Name]:
    """Yields the names that pyflakes finds undefined, by line, without names deleted anywhere."""
    # A tree of its own: pyflakes writes into it.
    tree = ast.parse(script.text)
    names = [node for node in ast.walk(script.tree) if isinstance(node, ast.Name)]
    # Functions may read a name before it is deleted.
    deleted = {node.id for node in names if isinstance(node.ctx, ast.Del)}
    read = {(node.lineno, node.col_offset): node for node in names if node.id not in deleted}
    for told in sorted(
        checker.Checker(tree, str(script.path)).messages, key=lambda told: (told.lineno, told.col)
    ):
        node = read.get((told.lineno, told.col))
        # names in texts, as in `x: "np.ndarray"`, are no nodes
        if (
            isinstance(told, messages.UndefinedName)
            and node is not None
            and told.message_args == (node.id,)
        ):
            yield node


def _may_be_defined(script: Script, node: ast.Name, defined: frozenset[str]) -> bool:
    """Returns whether a name may be there all the same.

    An earlier round of a loop may define it, it may be one of another version of Python, or it may
    never be read, as in annotations.
    """
    around = list(script.around(node))
    inner: ast.AST = node
    for outer in around:
        if inner in (getattr(outer, "annotation", None), getattr(outer, "returns", None)):
            return True
        inner = outer
    return is_tried(script, node) or (
        node.id in defined
        and any(isinstance(outer, ast.For | ast.While | ast.AsyncFor) for outer in around)
    )


def _defined_names(script: Script) -> frozenset[str]:
    """Returns all names that any statement of a file defines."""
    found = set(script.imported_paths)
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
    return frozenset(found)


def _advise(name: str, defined: frozenset[str]) -> str:
    if name in _USUAL or name in sys.stdlib_module_names:
        return f"write `{_USUAL.get(name, f'import {name}')}` at the beginning"
    if name in defined:
        return "it is defined elsewhere: in another function, or further down"
    like = closest_name(name, defined | set(dir(builtins)))
    return (
        f"It looks like a misspelling of `{like}`"
        if like
        else "define or import it before this line"
    )
