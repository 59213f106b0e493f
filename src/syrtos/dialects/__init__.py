"""Old APIs over the core, served to scripts in place of packages that need not be installed.

No other room imports them. Only processes that syrtos started find them under their old names;
there ours win over an installed original, and those of other packages serve what is not installed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from syrtos.dialects import registry
from syrtos.dialects.dialect import Dialect
from syrtos.launch.worker.import_hook import after_import, serve

# Once one of these is imported, dialects of other packages may add names to it. To look for them
# takes some 10 ms, few beside an import of a framework.
_FRAMEWORKS = ("tensorflow", "keras", "tf_keras", "torch", "jax")


def install() -> None:
    """Serves dialects' modules in this process, and gives packages the old names that they lost."""
    _install(registry.OURS)
    for framework in _FRAMEWORKS:
        after_import(framework, _install_others)
    sys.meta_path.append(_Others())


def _install(dialects: Sequence[Dialect], last: bool = False) -> None:
    serve({name: module for each in dialects for name, module in each.serves.items()}, last)
    for each in dialects:
        for package in each.adds_to:
            after_import(package, functools.partial(_install_into, each, package))


def _install_into(dialect: Dialect, package: str) -> None:
    backend = sys.modules["keras"].backend.backend() if package == "keras" else ""
    dialect.install_into(package, backend)


@functools.cache
def _install_others() -> None:
    _install(registry.of_other_packages(), last=True)


class _Others(MetaPathFinder):
    """The last finder: serves a missing package by the dialect whose entry point has its name."""

    def __init__(self) -> None:
        # Names that were looked up.
        self._seen: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if "." in fullname or fullname in self._seen:
            return None
        self._seen.add(fullname)
        found = registry.serving(fullname)
        if found is None:
            return None
        serve(found.serves, last=True)
        return find_spec(fullname)
