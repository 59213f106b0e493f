"""Finds out what the first lines of a script import, and which variables they set before.

It reads the script's text, so that one process can import for all workers. Nothing is executed. A
guess that fails costs time and no correctness: a worker compares the environment when it imports
(see `syrtos.launch.processes.zygote`).
"""

from __future__ import annotations

import ast
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from syrtos.launch.processes.zygote import FRAMEWORKS, is_compared
from syrtos.launch.processes.zygote_process import is_watched
from syrtos.launch.program import Program

# Modules that import a framework, beside the frameworks themselves.
_BY_OTHERS = {
    "horovod.tensorflow": "tensorflow",
    "horovod.keras": "keras",
    "horovod.torch": "torch",
    "smdistributed.dataparallel.tensorflow": "tensorflow",
    "tensorflow_datasets": "tensorflow",
    "keras_tuner": "keras",
    "flax": "jax",
}
# Libraries that scripts import beside them, and that take long: shared between the workers too.
_LIBRARIES = ("sklearn", "scipy", "pandas", "h5py")
_MOST_FILES = 50  # of the script's own
_LONGEST_FILE = 1 << 20  # bytes


@dataclasses.dataclass(frozen=True)
class FirstImports:
    """The modules that one process can import for all workers, and the variables that it needs."""

    frameworks: tuple[str, ...]
    libraries: tuple[str, ...]
    variables: Mapping[str, str]


_NOTHING = FirstImports((), (), {})


def first_imports(program: Program, env: Mapping[str, str]) -> FirstImports:
    """Reads a script, and the files beside it that it imports.

    Args:
        program: the program that the workers run.
        env: the environment of the workers; a script may keep a variable that is set already.

    Returns:
        No frameworks where each worker must import them by itself: for modules (`-m`), flags of the
        interpreter, coverage and debuggers, scripts without a framework, and where variables that
        frameworks read are set in another way than as constants at the beginning of the file.
    """
    if program.is_module or program.flags or is_watched(env):
        return _NOTHING
    reader = _ImportReader(Path(os.path.realpath(program.name)).parent, env)
    try:
        reader.read(Path(program.name))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return _NOTHING
    if reader.uncertain or not reader.frameworks:
        return _NOTHING
    return FirstImports(tuple(reader.in_order()), tuple(reader.libraries), reader.variables)


class _ImportReader:
    """Walks through the files of a script in the order of their imports."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.frameworks: list[str] = []
        self.libraries: list[str] = []
        self.variables: dict[str, str] = {}
        self.uncertain = False
        self._folder, self._env = folder, env
        self._files: set[Path] = set()
        self._names_keras = False

    def read(self, path: Path) -> None:
        if (
            path in self._files
            or len(self._files) >= _MOST_FILES
            or path.stat().st_size > _LONGEST_FILE
        ):
            return
        self._files.add(path)
        source = path.read_bytes()
        tree = ast.parse(source)
        self._names_keras |= b"keras" in source
        understood: set[ast.AST] = set()
        for statement in _unconditional_statements(tree.body):
            if (assigned := _assigned_variable(statement, self._env)) is not None:
                understood.add(statement)
                self._assign(*assigned)
            elif isinstance(statement, ast.Import | ast.ImportFrom):
                self._import(statement)
        # The script imports them in its functions.
        if not self.frameworks:
            for node in ast.walk(tree):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    self._import(node)
        self.uncertain |= any(_changes_environment(node, understood) for node in ast.walk(tree))

    def in_order(self) -> Iterator[str]:
        """Yields the frameworks in the order of import, with the Keras that `tf.keras` is."""
        legacy = {**self._env, **self.variables}.get("TF_USE_LEGACY_KERAS", "").lower() in (
            "1",
            "true",
        )
        yield from self.frameworks
        if self._names_keras and not {"keras", "tf_keras"} & set(self.frameworks):
            yield "tf_keras" if legacy else "keras"

    def _assign(self, name: str, value: str) -> None:
        if not is_compared(name):
            return
        if self.frameworks:
            # one that is imported later, as `tf.keras`, would read it
            self.uncertain = True
        self.variables[name] = value

    def _import(self, statement: ast.Import | ast.ImportFrom) -> None:
        for name in _imported_modules(statement):
            top = name.partition(".")[0]
            by_others = (by for key, by in _BY_OTHERS.items() if f"{name}.".startswith(f"{key}."))
            found = top if top in FRAMEWORKS else next(by_others, "")
            if found and found not in self.frameworks:
                self.frameworks.append(found)
            elif top in _LIBRARIES and name not in self.libraries:
                self.libraries.append(name)
            elif not found:
                self._read_beside(name)

    def _read_beside(self, name: str) -> None:
        """Reads a module of the script's own, if a file beside the script has that name."""
        base = self._folder.joinpath(*name.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                self.read(path)


def _unconditional_statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements executed in any case, also those in the bodies of `try` and `with`."""
    for statement in body:
        if isinstance(statement, ast.Try | ast.With):
            yield from _unconditional_statements(statement.body)
        else:
            yield statement


def _imported_modules(statement: ast.Import | ast.ImportFrom) -> list[str]:
    """Returns the names of the modules that a statement imports, without relative imports."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if statement.level or statement.module is None:
        return []
    joined = f"{statement.module}.{statement.names[0].name}"
    return [joined] if joined in _BY_OTHERS else [statement.module]


def _assigned_variable(statement: ast.stmt, env: Mapping[str, str]) -> tuple[str, str] | None:
    """Returns name and value of a variable of the environment that a statement sets.

    Such a statement is ``os.environ["NAME"] = "value"`` or
    ``os.environ.setdefault("NAME", "value")``. Returns None for any other statement.
    """
    match statement:
        case ast.Assign(
            targets=[ast.Subscript(value=place, slice=ast.Constant(str(name)))],
            value=ast.Constant(str(value)),
        ) if _is_environ(place):
            return name, value
        case ast.Expr(
            ast.Call(
                func=ast.Attribute(value=place, attr="setdefault"),
                args=[ast.Constant(str(name)), ast.Constant(str(value))],
            )
        ) if _is_environ(place):
            return name, env.get(name, value)
    return None


def _is_environ(node: ast.AST) -> bool:
    match node:
        case ast.Name(id="environ") | ast.Attribute(attr="environ"):
            return True
    return False


def _changes_environment(node: ast.AST, understood: set[ast.AST]) -> bool:
    """Returns whether a statement or call may set a variable that frameworks read.

    Changes that are ``understood``, and those of variables with constant names that no framework
    reads, don't count.
    """
    match node:
        case ast.Assign(targets=targets):
            places = targets
        case ast.AugAssign(target=target):
            places = [target]
        case ast.Delete(targets=targets):
            places = targets
        case ast.Call(
            func=ast.Attribute(
                value=place, attr="update" | "pop" | "clear" | "popitem" | "setdefault"
            ),
            args=args,
        ) if _is_environ(place):
            return not any(
                node is one.value for one in understood if isinstance(one, ast.Expr)
            ) and _may_be_read(args[:1])
        case ast.Call(
            func=ast.Attribute(attr="putenv" | "unsetenv" | "load_dotenv")
            | ast.Name(id="putenv" | "unsetenv" | "load_dotenv")
        ):
            return True
        case _:
            return False
    names = [
        place.slice
        for place in places
        if isinstance(place, ast.Subscript) and _is_environ(place.value)
    ]
    return node not in understood and bool(names) and _may_be_read(names)


def _may_be_read(names: Sequence[ast.AST]) -> bool:
    known = [
        node.value
        for node in names
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return len(known) < len(names) or not names or any(map(is_compared, known))
