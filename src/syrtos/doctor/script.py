"""A script's syntax tree and the meaning of its names. The script is neither run nor imported."""

from __future__ import annotations

import ast
import dataclasses
import functools
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

from syrtos.errors import ConfigurationError

# Spellings under which scripts reach the same module; rules know the second one of each pair.
_SAME = (
    ("tensorflow.compat.v2", "tensorflow"),
    ("tensorflow.python.keras", "keras"),
    ("tensorflow.compat.v1.keras", "keras"),
    ("tensorflow.keras", "keras"),
    ("tensorflow.contrib.keras", "keras"),
    ("tf_keras", "keras"),
    ("tensorflow.optimizers", "keras.optimizers"),
    ("tensorflow.losses", "keras.losses"),
    ("tensorflow.metrics", "keras.metrics"),
)
# The files among which local modules are looked for at most.
_MOST_MODULES = 50


class NotParsed(ConfigurationError):
    """The error for a file that is not Python 3.

    Attributes:
        line: the line at which parsing failed, from 1.
        reason: Python's message.
    """

    def __init__(self, path: Path, line: int, reason: str, text: str) -> None:
        self.line, self.reason = line, reason
        old = _is_python_2(text)
        says = (
            "It is written in Python 2: convert it first (`2to3`, which Python 3.12 and older"
            " bring)."
            if old
            else "Mend this line first: `python -m py_compile` shows it."
        )
        super().__init__(f"{path}, line {line}, can't be parsed: {reason}. {says}")


def _is_python_2(text: str) -> bool:
    return any(
        line.lstrip().startswith(("print ", "exec "))
        or (line.lstrip().startswith("raise ") and ", " in line)
        for line in text.splitlines()
    )


@dataclasses.dataclass(frozen=True)
class Script:
    """A parsed file.

    Attributes:
        path: the path of the file.
        text: its text.
        tree: its syntax tree.
    """

    path: Path
    text: str
    tree: ast.Module

    @functools.cached_property
    def parents(self) -> Mapping[ast.AST, ast.AST]:
        """The node around each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields the nodes around a node, the nearest first."""
        while (node := self.parents.get(node, self.tree)) is not self.tree:
            yield node

    @functools.cached_property
    def calls(self) -> list[ast.Call]:
        """The calls in the file, in the order of lines."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return sorted(found, key=lambda call: (call.lineno, call.col_offset))

    @functools.cached_property
    def imported_paths(self) -> Mapping[str, str]:
        """The dotted paths, as written, that names stand for.

        They come from imports and from assignments such as ``layers = tf.keras.layers``. Relative
        imports are left out.
        """
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    found[name.asname or name.name.partition(".")[0]] = (
                        name.name if name.asname else name.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for name in node.names:
                    found[name.asname or name.name] = f"{node.module}.{name.name}"
        for name, values in self.assigned_values.items():
            if (
                len(values) == 1
                and name not in found
                and isinstance(values[0], ast.Attribute)
                and (path := _dotted(values[0], found))
            ):
                found[name] = path
        return found

    @functools.cached_property
    def assigned_values(self) -> Mapping[str, list[ast.expr]]:
        """The values that each name is given anywhere in the file."""
        found: dict[str, list[ast.expr]] = {}
        for node in ast.walk(self.tree):
            for target, value in _bindings(node):
                found.setdefault(target, []).append(value)
        return found

    def texts_with_values(self, node: ast.AST) -> list[str]:
        """Returns the text of an expression, and those of values given to the names in it."""
        names = (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
        values = (value for name in names for value in self.assigned_values.get(name, []))
        return [ast.unparse(each) for each in (node, *values)]

    @functools.cached_property
    def functions(self) -> Mapping[str, ast.FunctionDef]:
        """The functions and methods of the file, by name."""
        return {
            node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)
        }

    def written_path(self, node: ast.AST) -> str | None:
        """Returns the dotted path that a name or an attribute stands for; None for all others.

        The script's spelling is kept: ``tensorflow.keras.layers.Dense``.
        """
        return _dotted(node, self.imported_paths)

    def meaning(self, node: ast.AST) -> str:
        """Returns the path of `written_path` in its standard spelling.

        An example is ``keras.layers.Dense``. The text is empty if there is no path.
        """
        return canonical(self.written_path(node) or "")

    def function_around(self, node: ast.AST) -> ast.FunctionDef | None:
        """Returns the innermost function in whose body a node stands; None outside of functions."""
        return next(
            (outer for outer in self.around(node) if isinstance(outer, ast.FunctionDef)), None
        )

    def constant(self, node: ast.AST | None) -> object:
        """Returns the number or text that an expression is known to have; else None.

        Products and negative numbers are computed. Names that are assigned once, and attributes
        named as command line arguments with defaults, are looked up.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if (
            isinstance(node, ast.UnaryOp)
            and isinstance(node.op, ast.USub)
            and isinstance(value := self.constant(node.operand), int | float)
        ):
            return -value
        if isinstance(node, ast.Name):
            values = self.assigned_values.get(node.id, [])
            return (
                values[0].value
                if len(values) == 1 and isinstance(values[0], ast.Constant)
                else None
            )
        if isinstance(node, ast.Attribute):
            return self.defaults.get(node.attr)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            left, right = self.constant(node.left), self.constant(node.right)
            return (
                left * right
                if isinstance(left, int | float) and isinstance(right, int | float)
                else None
            )
        return None

    @functools.cached_property
    def defaults(self) -> Mapping[str, object]:
        """The defaults of command line arguments, by the names of their attributes."""
        found: dict[str, object] = {}
        for call in self.calls:
            if (
                isinstance(call.func, ast.Attribute)
                and call.func.attr == "add_argument"
                and (names := [a.value for a in call.args if isinstance(a, ast.Constant)])
            ):
                default = argument(call, "default")
                if isinstance(default, ast.Constant):
                    found[str(names[-1]).lstrip("-").replace("-", "_")] = default.value
        return found

    def line(self, number: int) -> str:
        """Returns the text of a line, from 1; empty if there is no such line."""
        lines = self.text.splitlines()
        return lines[number - 1] if 0 < number <= len(lines) else ""


def canonical(path: str) -> str:
    """Returns the standard spelling of a dotted path.

    Keras is ``keras``, and TensorFlow's second API is ``tensorflow``.
    """
    for old, new in _SAME:
        if path == old or path.startswith(old + "."):
            return canonical(new + path[len(old) :])
    return path


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Returns the argument of a call, by its name or its position; None if it is not given."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if (
        position is not None
        and position < len(call.args)
        and not any(isinstance(a, ast.Starred) for a in call.args[: position + 1])
    ):
        return call.args[position]
    return None


def method(call: ast.Call) -> str:
    """Returns the name of the method or function that is called, whatever it is called on."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def read(path: Path) -> Script:
    """Parses a file.

    Raises:
        ConfigurationError: there is no such file, it is not text, or it is nested too deeply.
        NotParsed: it is not Python 3.
    """
    if path.suffix == ".ipynb":
        raise ConfigurationError(
            f"{path} is a notebook: make a script of it, by `jupyter nbconvert --to script`."
        )
    try:
        # In the encoding that the file declares.
        with tokenize.open(path) as file:
            text = file.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} can't be read as a Python file: {error}.") from None
    return parse(path, text)


def parse(path: Path, text: str) -> Script:
    """Parses the text of a file.

    Raises:
        ConfigurationError: it is nested too deeply.
        NotParsed: it is not Python 3.
    """
    try:
        return Script(path, text, ast.parse(text))
    except RecursionError:
        raise ConfigurationError(f"{path} is nested too deeply to be read.") from None
    except (SyntaxError, ValueError) as error:
        raise NotParsed(
            path,
            getattr(error, "lineno", None) or 1,
            getattr(error, "msg", None) or str(error),
            text,
        ) from None


def with_local_modules(first: Script) -> list[Script]:
    """Returns a script and the local modules that it imports, directly or through others.

    Modules that can't be parsed are left out. The search ends once 50 files are found.
    """
    found = {first.path.resolve(): first}
    waiting = [first]
    while waiting and len(found) < _MOST_MODULES:
        script = waiting.pop()
        for path in _local_imports(script, first.path.parent):
            if path.resolve() not in found:
                try:
                    found[path.resolve()] = read(path)
                except ConfigurationError:
                    continue
                waiting.append(found[path.resolve()])
    return list(found.values())


def _local_imports(script: Script, folder: Path) -> Iterator[Path]:
    for node in ast.walk(script.tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [
                node.module or "",
                *(f"{node.module}.{n.name}" if node.module else n.name for n in node.names),
            ]
        start = script.path.parent if isinstance(node, ast.ImportFrom) and node.level else folder
        for name in filter(None, names):
            stem = start.joinpath(*name.split("."))
            yield from (
                path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()
            )


def _dotted(node: ast.AST, names: Mapping[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, names)
        return f"{base}.{node.attr}" if base else None
    return None


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, ast.Tuple | ast.List):
                values = (
                    node.value.elts
                    if isinstance(node.value, ast.Tuple | ast.List)
                    and len(node.value.elts) == len(target.elts)
                    else [node.value] * len(target.elts)
                )
                yield from (
                    (t.id, v)
                    for t, v in zip(target.elts, values, strict=True)
                    if isinstance(t, ast.Name)
                )
    elif (
        isinstance(node, ast.AnnAssign | ast.NamedExpr)
        and isinstance(node.target, ast.Name)
        and node.value is not None
    ):
        yield node.target.id, node.value
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
    elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
        yield node.optional_vars.id, node.context_expr
    elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
        yield node.target.id, node.iter
