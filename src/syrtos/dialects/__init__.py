"""Old APIs over the core, served to scripts in place of packages that need not be installed; each is a leaf.

Only processes that syrtos started import them by their old names; there they win over an installed
original.
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

# Once one of these is imported, dialects of other packages may add names to them. To look for them
# takes 20 ms, which an import of a framework hides.
_FRAMEWORKS = ("tensorflow", "keras", "tf_keras", "torch", "jax")


def install() -> None:
    """Serves the modules of dialects in this process, and gives packages the old names that they have lost."""
    _install(registry.OURS)
    for framework in _FRAMEWORKS:
        after_import(framework, _install_others)
    sys.meta_path.append(_Others())


def _install(dialects: Sequence[Dialect]) -> None:
    serve({name: module for each in dialects for name, module in each.serves.items()})
    for each in dialects:
        for package in each.adds_to:
            after_import(package, functools.partial(_install_into, each, package))


def _install_into(dialect: Dialect, package: str) -> None:
    backend = sys.modules["keras"].backend.backend() if package == "keras" else ""
    dialect.install_into(package, backend)


@functools.cache
def _install_others() -> None:
    if found := registry.of_other_packages():
        _install(found)


class _Others(MetaPathFinder):
    """The last finder: looks for a package that nobody else has among those that other packages' dialects serve."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if "." in fullname:
            return None
        served = {name for each in registry.of_other_packages() for name in each.serves}
        if fullname not in served:
            return None
        sys.meta_path.remove(self)
        _install_others()
        return find_spec(fullname)
