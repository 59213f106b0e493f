from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from syrtos.launch.processes import deferred_imports

Imports = Callable[[str], ModuleType]


@pytest.fixture
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Imports]:
    """Imports modules of a folder, of which `toy.late` is put off and `toy.careful` does without JAX."""
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "__init__.py").write_text("from toy import late\n")
    (tmp_path / "toy" / "late.py").write_text(
        "import time, toy_library\ntime.sleep(0.1)\nname = toy_library.name\n"
    )
    (tmp_path / "toy" / "careful.py").write_text(
        "try:\n    import jax\nexcept ImportError:\n    jax = None\n"
    )
    (tmp_path / "toy_library.py").write_text("name = 'of the library'\n")
    (tmp_path / "jax.py").write_text("name = 'of jax'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    # Another test of this process may have put imports off already.
    others = [finder for finder in sys.meta_path if not getattr(finder, "puts_imports_off", False)]
    monkeypatch.setattr(sys, "meta_path", others)
    known = {name: module for name, module in sys.modules.items() if name != "jax"}
    monkeypatch.setattr(deferred_imports, "_DEFERRED", frozenset({"toy.late", "toy.absent"}))
    monkeypatch.setattr(deferred_imports, "_WITHOUT_JAX", "toy.careful")
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    deferred_imports.install()
    yield importlib.import_module
    for name in set(sys.modules) - set(known):
        del sys.modules[name]


def test_a_module_is_executed_when_a_name_is_asked_of_it(imports: Imports) -> None:
    late = imports("toy").late
    assert "toy_library" not in sys.modules
    inspect.getmodule(inspect.currentframe())  # asks all modules for their files
    assert not hasattr(late, "__wrapped__")
    assert "toy_library" not in sys.modules
    assert late.name == "of the library"
    assert late.__spec__ is not None
    assert (
        type(late.__spec__.loader).__name__ == type(late.__loader__).__name__ == "SourceFileLoader"
    )
    assert inspect.getsource(late).startswith("import time")
    with pytest.raises(AttributeError, match=r"module 'toy\.late' has no attribute 'other'"):
        _ = late.other


def test_its_names_are_listed_and_imported_from_it(imports: Imports) -> None:
    late = imports("toy.late")
    assert "name" in dir(late)
    namespace: dict[str, object] = {}
    exec("from toy.late import name", namespace)
    assert namespace["name"] == "of the library"
    with pytest.raises(ModuleNotFoundError):
        imports("toy.absent")


def test_threads_that_ask_at_once_all_get_it(imports: Imports) -> None:
    late, found = imports("toy").late, []
    threads = [threading.Thread(target=lambda: found.append(late.name)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["of the library"] * 4


def test_a_module_does_without_jax_unless_that_is_imported_already(imports: Imports) -> None:
    assert imports("toy.careful").jax is None
    assert imports("jax").name == "of jax"  # a script can still import it
    del sys.modules["toy.careful"]
    assert imports("toy.careful").jax is sys.modules["jax"]
