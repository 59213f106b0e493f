"""Rules about packages that a script needs and that are not installed."""

from __future__ import annotations

import ast
import functools
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from syrtos import entry_points, settings
from syrtos.doctor import machine_packages
from syrtos.doctor.finding import Finding, Severity, at
from syrtos.doctor.packages import is_installed
from syrtos.doctor.program import ScriptProgram
from syrtos.doctor.rules.names import is_tried
from syrtos.doctor.script import Script, argument, method
from syrtos.launch.spelling import closest_name
from syrtos.launch.worker.other_backends import NAMES, propose_backend

_RULE = "missing-package"
# What `syrtos run` answers for itself, and packages whose end the rule `dead-api` tells.
_SERVED = frozenset(
    {"horovod", "smdistributed", "tensorflow_addons", "tensorflow_estimator", "keras_contrib"}
)
# Packages whose misspelt names are told.
_COMMON = (
    "keras", "tensorflow", "torch", "jax", "numpy", "pandas", "scipy", "matplotlib", "seaborn", "syrtos", "horovod",
    "wandb", "mlflow", "tqdm", "h5py",
    "requests", "transformers", "keras_cv", "keras_hub", "keras_nlp", "keras_tuner", "torchvision", "jaxlib",
    "pandera", "tensorboard",
)  # fmt: skip


@functools.cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(resources.files("syrtos.doctor").joinpath("needs.toml").read_text())


def missing_imports(program: ScriptProgram) -> Iterator[Finding]:
    """Finds imports of packages neither installed nor beside the script, each once per file."""
    served = _SERVED.union(entry_points.names(entry_points.DIALECTS), sys.stdlib_module_names)
    folders = {Path.cwd(), *(script.path.resolve().parent for script in program.scripts)}
    for script in program.scripts:
        if "sys.path" in script.text or "site.addsitedir" in script.text:
            # The script says itself where its modules are.
            continue
        seen = set(served)
        for node, root in _imported_roots(script):
            if root in seen or is_installed(root) or _is_tried(script, node):
                continue
            seen.add(root)
            if not any(
                next(folder.glob(f"{root}.*"), None) or (folder / root).is_dir()
                for folder in folders
            ):
                yield _describe_missing(
                    program, script, node, f"the package `{root}` is not installed", root
                )


def _imported_roots(script: Script) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Import):
            yield from ((node, name.name.partition(".")[0]) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node, node.module.partition(".")[0]


def hidden_needs(program: ScriptProgram) -> Iterator[Finding]:
    """Finds calls that import a package which is not installed, each once for every file."""
    for script in program.scripts:
        seen: set[str] = set()
        for call in script.calls:
            path, by_method = (
                script.meaning(call.func),
                f".{method(call)}" * isinstance(call.func, ast.Attribute),
            )
            for need in _table()["hidden"].get(path) or _table()["hidden"].get(by_method) or []:
                named = need.split("|")
                if named[0] in seen or any(map(is_installed, named)) or _is_tried(script, call):
                    continue
                # data sets of Grain need no TensorFlow
                if argument(call, "format") is None:
                    seen.add(named[0])
                    yield _describe_missing(
                        program,
                        script,
                        call,
                        f"`{method(call)}` needs the package `{named[0]}`",
                        named[0],
                    )


def _describe_missing(
    program: ScriptProgram, script: Script, node: ast.AST, says: str, root: str
) -> Finding:
    severity = Severity.BREAKS if _is_reached(program, script, node) else Severity.NOTE
    says += ", which is not installed" * ("not installed" not in says)
    if instead := _table()["moved"].get(root):
        return at(
            script,
            node,
            _RULE,
            severity,
            f"this Python has no module `{root}`",
            f"import `{instead}`",
        )
    fix = f"`pip install {_table()['distributions'].get(root, root.replace('_', '-'))}`"
    if root not in (known := {*_COMMON, *_table()["distributions"]}) and (
        like := closest_name(root, known)
    ):
        fix = f"write `{like}` if that is meant; else {fix}"
    return at(script, node, _RULE, severity, says, fix)


def _is_tried(script: Script, node: ast.AST) -> bool:
    """Returns whether the script goes on without the package, or imports it for types alone."""
    return is_tried(script, node) or any(
        isinstance(outer, ast.With | ast.If)
        and any(
            word in ast.unparse(_head(outer))
            for word in ("ImportError", "ModuleNotFound", "TYPE_CHECKING")
        )
        for outer in script.around(node)
    )


def _head(statement: ast.With | ast.If) -> ast.expr:
    return statement.test if isinstance(statement, ast.If) else statement.items[0].context_expr


def _is_reached(program: ScriptProgram, script: Script, node: ast.AST) -> bool:
    """Returns whether a line runs for sure, as far as its conditions and function's name tell."""
    if any(
        isinstance(o, ast.If) and "__name__" not in ast.unparse(o.test) for o in script.around(node)
    ):
        return False
    function = script.function_around(node)
    return function is None or any(method(call) == function.name for _, call in program.calls())


def absent_backend(program: ScriptProgram) -> Iterator[Finding]:
    """Finds the import of Keras on a backend that is not installed, where another one is."""
    # Keras writes its default into `keras.json`: a backend there need not have been chosen
    name, by = machine_packages.chosen_backend(settings.environment())
    if name not in NAMES or is_installed(name):
        return
    if any("KERAS_BACKEND" in script.text for script in program.scripts):
        return
    for script in program.scripts:
        for node, root in _imported_roots(script):
            if root == "keras" and (
                fix := propose_backend(name, f"syrtos run -n {program.workers} {script.path.name}")
            ):
                says = f"Keras's backend here is {NAMES[name]} (by {by}), which is not installed"
                yield at(script, node, "absent-backend", Severity.BREAKS, says, fix)
                return
