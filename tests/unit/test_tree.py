"""The tree of unit tests is that of `src/syrtos`, so the tests of a module are found by its path."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "syrtos"

# The front door is the package itself; the documentation, this tree and the program that builds wheels are no modules.
OF_NO_MODULE = {"test_front_door", "test_docs", "test_tree", "test_dist"}


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
