"""Runs a function right after a module has been imported, whoever imports it and whenever."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def after_import(name: str, call: Callable[[], None]) -> None:
    """Calls ``call`` once the module ``name`` is complete; at once if it is imported already."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Finder(name, call))


class _Finder(MetaPathFinder):
    """Finds one module the ordinary way, and wraps its loader."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec and spec.loader:
            spec.loader = _Loader(spec.loader, self._call)
        return spec


class _Loader(Loader):
    """Loads like the original, then calls."""

    def __init__(self, original: Loader, call: Callable[[], None]) -> None:
        self._original = original
        self._call = call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = self._original
        module.__loader__ = self._original
        self._original.exec_module(module)
        self._call()
