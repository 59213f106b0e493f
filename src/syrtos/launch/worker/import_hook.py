"""Hooks on the imports of a script.

A hook serves another module in place of one, or calls a function right after an import.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def after_import(
    name: str,
    call: Callable[[], None],
    before: Callable[[], None] = lambda: None,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Calls ``call`` once the module ``name`` is imported completely.

    ``before`` is called when the module is about to be imported, and the import takes place inside
    of ``around()``. If it is imported already, ``before`` and ``call`` are called at once; if its
    import has begun, with a hook of ours, ``before`` alone.
    """
    if sys.modules.get(name) is not None:
        before()
        # A framework that this one imports may lead here: the module lacks its last names yet.
        importing = (f for f in sys.meta_path if isinstance(f, _Finder) and f.imports(name))
        if outermost := next(importing, None):
            outermost.calls.append(call)
        else:
            call()
    else:
        sys.meta_path.insert(0, _Finder(name, call, before, around))


def serve(modules: Mapping[str, str], last: bool = False) -> None:
    """Serves the module named as the value where a script imports a name in ``modules``.

    It does so whatever is installed; with ``last`` only what nothing else has.
    """
    sys.meta_path.insert(len(sys.meta_path) if last else 0, _Server(modules))


class _Server(MetaPathFinder):
    """Finds modules under other names."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        real = self._modules.get(fullname)
        if real is not None:
            return ModuleSpec(fullname, _Substitute(real))
        # the module that is served has submodules of its own, which scripts don't see
        if fullname.split(".")[0] in self._modules:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: syrtos answers for {fullname.split('.')[0]}"
                " without it",
                name=fullname,
            )
        return None


class _Substitute(Loader):
    """Puts another module in a new one's place."""

    def __init__(self, real: str) -> None:
        self._real = real

    def exec_module(self, module: ModuleType) -> None:
        found = importlib.import_module(self._real)
        if not hasattr(found, "__path__"):
            # the import system requires it of a module with submodules
            found.__path__ = []
        sys.modules[module.__name__] = found


class _Finder(MetaPathFinder):
    """Finds one module the ordinary way, and wraps its loader."""

    def __init__(
        self,
        name: str,
        call: Callable[[], None],
        before: Callable[[], None],
        around: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._name = name
        # Also those of hooks that are made while the module is imported.
        self.calls = [call]
        self._before = before
        self._around = around
        self._searching = False
        self._executing = False

    def imports(self, name: str) -> bool:
        """Returns whether this finder's module has this name, and its import has begun."""
        return self._executing and name == self._name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # The search for the ordinary way comes here too.
        if fullname != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = find_spec(fullname)
        finally:
            self._searching = False
        if spec and spec.loader:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def execute(self, run: Callable[[], None]) -> None:
        """Lets ``run`` execute the module and makes the calls once it is complete; then removes itself."""
        self._executing = True
        try:
            self._before()
            with self._around():
                run()
        finally:
            self._executing = False
        # A call that refuses the module stays: it must refuse the next import too.
        while self.calls:
            self.calls[0]()
            del self.calls[0]
        sys.meta_path.remove(self)


class _Loader(Loader):
    """A loader that loads like the original, then tells the finder.

    Looking a module up, or failing to import it, changes nothing.
    """

    def __init__(self, original: Loader, finder: _Finder) -> None:
        self._original = original
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = self._original
        module.__loader__ = self._original
        self._finder.execute(lambda: self._original.exec_module(module))
