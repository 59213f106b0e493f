"""The tree of unit tests is that of `src/syrtos` and the packages beside it; arrows between rooms are imports that import-linter sees."""

from __future__ import annotations

import ast
import fnmatch
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = HERE.parents[1] / "src"
SOURCE = PACKAGES / "syrtos"

# The front door is the package itself; the documentation, this tree, what tests share and the program that builds wheels are no modules.
OF_NO_MODULE = {"test_front_door", "test_docs", "test_tree", "test_conftest", "test_dist"}


def test_each_file_stands_where_its_module_stands() -> None:
    astray = []
    for path in HERE.rglob("test_*.py"):
        folder = path.relative_to(HERE).parent
        package = PACKAGES if str(folder).startswith("syrtos_") else SOURCE
        module = package / folder / path.stem.removeprefix("test_")
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
    "syrtos/__init__.py", "syrtos/api.py", "syrtos/data/__init__.py", "syrtos/keras/__init__.py", "syrtos/keras/activate.py",
    "syrtos/cli/*", "syrtos/launch/processes/zygote.py",
    "syrtos/dialects/dialect.py", "syrtos_estimator/lost_names.py", "syrtos/engines/registry.py",
    "syrtos/keras/features/registry.py", "syrtos/report/trackers/__init__.py",
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
        str(path.relative_to(PACKAGES)): found
        for path in PACKAGES.rglob("*.py")
        if (found := _names_of_ours(ast.parse(path.read_text())))
        and not any(fnmatch.fnmatch(str(path.relative_to(PACKAGES)), each) for each in BY_NAME)
    }
    assert not hidden
