"""The variables of the environment that a script names, and whether it reads arguments.

A script's text names a variable by a string, however the script then reads it: `os.environ`,
`os.getenv`, a function of its own, an option of a library. Values are kept as salted digests,
and those of secrets are not kept.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from syrtos.errors import ConfigurationError
from syrtos.launch.program import Program
from syrtos.settings import is_secret

_BYTES = 8  # of a salt, and of a digest
# Names without which a script reads no arguments.
_READERS = frozenset((
    "absl", "app", "argparse", "argv", "click", "configargparse", "cyclopts", "docopt", "fire",
    "flags", "getopt", "hydra", "jsonargparse", "optparse", "orig_argv", "plac", "simple_parsing",
    "tap", "transformers", "typer", "tyro",
))  # fmt: skip


def fingerprints(program: Program, env: Mapping[str, str]) -> dict[str, Any]:
    """Returns the digests of the variables that the script names, for `changed_names` later."""
    salt = os.urandom(_BYTES).hex()
    named = sorted(_names(program) & env.keys())
    return {"salt": salt, "digests": {name: _digest(env[name], salt) for name in named}}


def changed_names(program: Program, env: Mapping[str, str], kept: Mapping[str, Any]) -> list[str]:
    """Returns the names of variables that have other values than when ``kept`` was made.

    Those that are set now and were not, or the other way round, are among them.
    """
    if not kept:
        return []
    before: Mapping[str, str] = kept["digests"]
    # The script may have changed, too: it named the first, and names the others now.
    candidates = before.keys() | (_names(program) & env.keys())
    return sorted(
        name
        for name in candidates
        if before.get(name) != (_digest(env[name], kept["salt"]) if name in env else None)
    )


def _digest(value: str, salt: str) -> str:
    return hashlib.blake2b(
        value.encode(errors="surrogateescape"), key=salt.encode(), digest_size=_BYTES
    ).hexdigest()


def may_read_arguments(program: Program) -> bool:
    """Returns whether the script or a local module names what reads a script's arguments."""
    trees = _trees(program)
    return not trees or any(
        word in _READERS for tree in trees for node in ast.walk(tree) for word in _words(node)
    )


def _words(node: ast.AST) -> list[str]:
    """Returns the names that a node imports, or the attribute that it reads."""
    if isinstance(node, ast.ImportFrom):
        return [(node.module or "").partition(".")[0], *(each.name for each in node.names)]
    if isinstance(node, ast.Import):
        return [each.name.partition(".")[0] for each in node.names]
    return [node.attr] if isinstance(node, ast.Attribute) else []


def _names(program: Program) -> set[str]:
    """Returns the strings in the script, and in local modules, that may name variables."""
    return {name for tree in _trees(program) for name in _identifiers(tree)}


def _trees(program: Program) -> list[ast.AST]:
    """Returns the parsed script and its local modules; none where that can't be read."""
    # only here: `syrtos run` starts without it where nothing is kept
    from syrtos.doctor.script import read, with_local_modules

    path = _file_of(program)
    if path is None:
        return []
    try:
        return [script.tree for script in with_local_modules(read(path))]
    except ConfigurationError:
        # It can't be parsed, which the workers will say.
        return []


def _file_of(program: Program) -> Path | None:
    """Returns the file of a script, or of a module in the folder; None for other modules."""
    if not program.is_module:
        return Path(os.path.realpath(program.name))
    base = Path.cwd().joinpath(*program.name.split("."))
    found = (base.with_suffix(".py"), base / "__main__.py")
    return next((path for path in found if path.is_file()), None)


def _identifiers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and text.isidentifier() and not is_secret(text):
            yield text
