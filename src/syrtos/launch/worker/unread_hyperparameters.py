"""Hyperparameters that a job's script has certainly not read.

A script gets them as arguments ``--name value``, in the variables ``SM_HP_NAME``, ``SM_HPS`` and
others, and in the file ``hyperparameters.json``. Argparse refuses arguments it does not know, but
for ``parse_known_args``, which returns them. Those that a script drops there are named if none of
its files mentions another way to read them.
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

_PARSE = "parse_known_args"
_MOST_FILES = 500
# Words of scripts that may read hyperparameters otherwise, also under names that they put together.
_OTHER_WAYS = re.compile(
    r"HP_|SM_HPS|SM_USER_ARGS|SM_TRAINING_ENV|SM_[{%\"']|hyperparameters|argv|sagemaker|environ\.(items|copy|keys|values)|"
    r"(dict|list)\(os\.environ|\*os\.environ|\bfor\b.*\bin\b.*environ"
)


def watch(script: Path, variables: Mapping[str, str]) -> Callable[[], list[str]]:
    """Watches what argparse does with a job's hyperparameters from now on.

    Args:
        script: the file that will run; its modules are in its folder.
        variables: the environment of the job's worker.

    Returns:
        A function that returns the names of hyperparameters that the script has not read, sorted;
        none that may have been read.
    """
    options = {
        ("-" if len(name) == 1 else "--") + name: name for name in _names(variables["SM_HPS"])
    }
    folder, parse = script.resolve().parent, argparse.ArgumentParser.parse_known_args
    dropped: set[str] = set()
    taken: set[str] = set()

    def names_in(words: Sequence[object]) -> set[str]:
        return {options[word] for word in words if isinstance(word, str) and word in options}

    @functools.wraps(parse)
    def watched(
        self: argparse.ArgumentParser, args: Iterable[str] | None = None, namespace: object = None
    ) -> tuple[object, list[str]]:
        given = list(sys.argv[1:] if args is None else args)
        found, left = parse(self, given, namespace)
        # a script may parse twice: what one parser leaves over, another may take
        taken.update(names_in(given) - names_in(left))
        # only the script's own call for its own command line: libraries parse arguments of theirs
        if args is None and Path(sys._getframe(1).f_code.co_filename).resolve().is_relative_to(
            folder
        ):
            dropped.update(names_in(left))
        return found, left

    argparse.ArgumentParser.parse_known_args = watched  # type: ignore[method-assign]
    return lambda: (
        sorted(dropped - taken) if dropped - taken and _are_dropped_for_good(folder) else []
    )


def _names(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except ValueError:
        return []  # a variable of the user's own, and no job's
    return [*found] if isinstance(found, dict) else []


def _are_dropped_for_good(folder: Path) -> bool:
    """Returns whether no Python file of a folder uses what `parse_known_args` leaves over.

    No file may read hyperparameters in another way either.
    """
    files = [*itertools.islice(folder.rglob("*.py"), _MOST_FILES + 1)]
    if len(files) > _MOST_FILES:
        return False
    try:
        texts = [file.read_text(encoding="utf-8") for file in files]
        nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    except (OSError, ValueError, SyntaxError, RecursionError):
        return False
    if any(_OTHER_WAYS.search(text) for text in texts):
        return False
    # each mention must be one of the forms below: any other may use what is left over
    mentions = sum(isinstance(node, ast.Attribute) and node.attr == _PARSE for node in nodes)
    used = _used_names(nodes)
    return mentions == sum(_drops_the_rest(node, used) for node in nodes)


def _used_names(nodes: Sequence[ast.AST]) -> frozenset[str]:
    """Returns the names that are read, as variables or as attributes, or imported."""
    variables = {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return frozenset(
        variables | attributes | {node.name for node in nodes if isinstance(node, ast.alias)}
    )


def _drops_the_rest(node: ast.AST, used: frozenset[str]) -> bool:
    """Returns whether a node drops the second result of ``parse_known_args()``.

    Such a node is ``parse_known_args()[0]``, or an assignment of the results whose second is never
    used.
    """
    if isinstance(node, ast.Subscript):
        return (
            _is_parse(node.value) and isinstance(node.slice, ast.Constant) and node.slice.value == 0
        )
    if not isinstance(node, ast.Assign) or not _is_parse(node.value) or len(node.targets) != 1:
        return False
    target = node.targets[0]
    rest = target.elts[1] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else None
    return isinstance(rest, ast.Name) and rest.id not in used


def _is_parse(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == _PARSE
    )
