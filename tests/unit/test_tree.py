"""The tree of unit tests is that of `src/syrtos`; arrows between rooms are imports that import-linter sees."""

from __future__ import annotations

import ast
import fnmatch
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "syrtos"

# The front door is the package itself; the documentation, this tree, what tests share and the program that builds wheels are no modules.
OF_NO_MODULE = {"test_front_door", "test_docs", "test_tree", "test_conftest", "test_dist"}


def test_each_file_stands_where_its_module_stands() -> None:
    astray = []
    for path in HERE.rglob("test_*.py"):
        module = SOURCE / path.relative_to(HERE).parent / path.stem.removeprefix("test_")
        if (
            not module.with_suffix(".py").exists()
            and not module.is_dir()
            and path.stem not in OF_NO_MODULE
        ):
            astray.append(str(path.relative_to(HERE)))
    assert not astray


# Imports by name that import-linter does not see: in front doors that load what a script asks for,
# in registries, in a worker, which is composed there, and in commands.
BY_NAME = (
    "__init__.py", "api.py", "data/__init__.py", "keras/__init__.py", "keras/activate.py",
    "cli/*", "launch/worker/*", "launch/processes/zygote.py",
    "dialects/dialect.py", "dialects/estimator/__init__.py", "engines/registry.py",
    "keras/features/registry.py", "report/trackers/__init__.py",
)  # fmt: skip


def _names_of_ours(tree: ast.Module) -> list[str]:
    """What is given to `import_module` that begins with our package's name, or is no constant."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (getattr(node.func, "attr", "") or getattr(node.func, "id", "")) == "import_module"
    ]
    return [
        text
        for call in calls
        if (text := ast.unparse(call.args[0])).strip("f'\"").startswith("syrtos")
    ]


def test_arrows_are_not_hidden_in_imports_by_name() -> None:
    hidden = {
        str(path.relative_to(SOURCE)): found
        for path in SOURCE.rglob("*.py")
        if (found := _names_of_ours(ast.parse(path.read_text())))
        and not any(fnmatch.fnmatch(str(path.relative_to(SOURCE)), each) for each in BY_NAME)
    }
    assert not hidden
