"""Called once, right after, and nothing about the module is changed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from syrtos.launch.worker.import_hook import after_import

Write = Callable[..., str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes modules that can be imported; forgets them, and all hooks, afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    finders, before = sys.meta_path.copy(), set(sys.modules)

    def write(path: str, source: str = "value = 1\n") -> str:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        importlib.invalidate_caches()
        return path.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")

    yield write
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        if name.startswith("hooked"):
            del sys.modules[name]


def test_called_once_when_the_module_is_complete(module: Write) -> None:
    name, values = module("hooked_a.py"), list[int]()
    after_import(name, lambda: values.append(sys.modules[name].value))
    assert values == []
    importlib.import_module(name)
    importlib.import_module(name)
    assert values == [1]


def test_called_at_once_if_imported_already(module: Write) -> None:
    name, calls = module("hooked_b.py"), list[str]()
    importlib.import_module(name)
    after_import(name, lambda: calls.append("called"))
    assert calls == ["called"]


def test_other_imports_do_not_call(module: Write) -> None:
    name, calls = module("hooked_c.py"), list[str]()
    after_import(name, lambda: calls.append("called"))
    importlib.import_module(module("hooked_c2.py"))
    importlib.import_module(module("hooked_package/hooked_c.py"))
    assert calls == []


def test_a_module_keeps_its_own_spec_and_loader(module: Write) -> None:
    hooked, plain = module("hooked_d.py"), module("hooked_e.py")
    after_import(hooked, lambda: None)
    first, second = importlib.import_module(hooked), importlib.import_module(plain)
    assert type(first.__loader__) is type(second.__loader__)
    assert first.__spec__ is not None
    assert first.__spec__.loader is first.__loader__
    assert first.__spec__.origin == first.__file__
    assert inspect.getsource(first) == "value = 1\n"


def test_the_loader_is_its_own_while_the_module_runs(module: Write) -> None:
    name = module(
        "hooked_f.py", "loader = type(__loader__).__name__, type(__spec__.loader).__name__\n"
    )
    after_import(name, lambda: None)
    assert importlib.import_module(name).loader == ("SourceFileLoader", "SourceFileLoader")


def test_packages_work_and_so_do_their_modules(module: Write) -> None:
    name, seen = (
        module("hooked_pack/__init__.py", "from hooked_pack.inner import value\n"),
        list[int](),
    )
    module("hooked_pack/inner.py", "value = 7\n")
    after_import(name, lambda: seen.append(sys.modules[name].value))
    package = importlib.import_module(name + ".inner")
    assert (seen, package.value) == ([7], 7)
    assert sys.modules[name].__path__


def test_a_module_of_a_package_can_be_waited_for(module: Write) -> None:
    module("hooked_outer/__init__.py", "from hooked_outer import inner\n")
    name, calls = module("hooked_outer/inner.py"), list[str]()
    after_import(name, lambda: calls.append("called"))
    importlib.import_module("hooked_outer")
    assert calls == ["called"]


def test_two_may_wait_for_one_module(module: Write) -> None:
    name, calls = module("hooked_g.py"), list[str]()
    after_import(name, lambda: calls.append("first"))
    after_import(name, lambda: calls.append("second"))
    importlib.import_module(name)
    assert sorted(calls) == ["first", "second"]


def test_a_module_whose_import_has_begun_is_waited_for(module: Write) -> None:
    """As Keras, which imports its backend, whose hook waits for Keras."""
    outer, calls = module("hooked_q.py", "import hooked_r\nvalue = 1\n"), list[str]()
    inner = module("hooked_r.py")

    def hook() -> None:
        after_import(outer, lambda: calls.append(f"third {sys.modules[outer].value}"))
        calls.append("first")

    after_import(inner, hook)
    for _ in range(2):
        after_import(outer, lambda: calls.append("second"))
    before = len(sys.meta_path)
    importlib.import_module(outer)
    assert calls == ["first", "second", "second", "third 1"]
    assert len(sys.meta_path) == before - 3


def test_a_hook_that_is_made_before_the_module_runs_waits_too(module: Write) -> None:
    name, values = module("hooked_s.py"), list[int]()
    after_import(
        name,
        lambda: values.append(1),
        before=lambda: after_import(name, lambda: values.append(sys.modules[name].value + 1)),
    )
    importlib.import_module(name)
    assert values == [1, 2]


def test_a_call_that_refuses_the_module_refuses_it_again(module: Write) -> None:
    outer, calls = module("hooked_t.py", "import hooked_u\n"), list[str]()

    def refuse() -> None:
        calls.append("refused")
        raise RuntimeError("refused")

    after_import(module("hooked_u.py"), lambda: after_import(outer, refuse))
    after_import(outer, lambda: calls.append("first"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="refused"):
            importlib.import_module(outer)
    assert calls == ["first", "refused", "refused"]


def test_the_hook_leaves_no_finder_behind(module: Write) -> None:
    before = sys.meta_path.copy()
    name = module("hooked_h.py")
    after_import(name, lambda: None)
    importlib.import_module(name)
    assert sys.meta_path == before


def test_a_missing_module_stays_missing() -> None:
    after_import("hooked_nowhere", lambda: None)
    with pytest.raises(ModuleNotFoundError, match="hooked_nowhere"):
        importlib.import_module("hooked_nowhere")


def test_an_error_in_the_module_comes_through_uncalled(module: Write) -> None:
    name, calls = module("hooked_i.py", "raise RuntimeError('broken')\n"), list[str]()
    after_import(name, lambda: calls.append("called"))
    with pytest.raises(RuntimeError, match="broken"):
        importlib.import_module(name)
    assert calls == []
    assert name not in sys.modules


def test_an_error_in_the_call_fails_the_import(module: Write) -> None:
    name = module("hooked_j.py")

    def fail() -> None:
        raise RuntimeError("cannot patch")

    after_import(name, fail)
    with pytest.raises(RuntimeError, match="cannot patch"):
        importlib.import_module(name)


def test_asking_whether_a_module_exists_keeps_the_hook(module: Write) -> None:
    name, calls = module("hooked_k.py"), list[str]()
    after_import(name, lambda: calls.append("called"))
    assert importlib.util.find_spec(name) is not None
    importlib.import_module(name)
    assert calls == ["called"]


def test_an_import_that_failed_can_be_repeated(module: Write) -> None:
    name, calls = (
        module(
            "hooked_l.py", "import sys\nif not hasattr(sys, 'hooked_ready'): raise ImportError\n"
        ),
        list[str](),
    )
    after_import(name, lambda: calls.append("called"))
    with pytest.raises(ImportError):
        importlib.import_module(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "hooked_ready", True, raising=False)
        importlib.import_module(name)
    assert calls == ["called"]


def test_called_before_the_module_runs_and_not_when_looked_up(module: Write) -> None:
    name, calls = (
        module("hooked_m.py", "import sys\nsys.modules['hooked_calls'].append('module')\n"),
        list[str](),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "hooked_calls", calls)  # pyright: ignore[reportArgumentType]
        after_import(name, lambda: calls.append("after"), before=lambda: calls.append("before"))
        importlib.util.find_spec(name)
        assert calls == []
        importlib.import_module(name)
    assert calls == ["before", "module", "after"]


def test_an_error_before_keeps_the_module_from_running(module: Write) -> None:
    name, calls = module("hooked_n.py", "raise ImportError('the module ran')\n"), list[str]()

    def refuse() -> None:
        raise RuntimeError("refused")

    after_import(name, lambda: calls.append("after"), before=refuse)
    with pytest.raises(RuntimeError, match="refused"):
        importlib.import_module(name)
    assert calls == []
