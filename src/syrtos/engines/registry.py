"""The engines by name, in folders of this package and in entry points.

The group of the entry points is ``syrtos.engines``.
"""

from __future__ import annotations

import importlib
import pkgutil

import syrtos.engines
from syrtos import entry_points
from syrtos.engines.engine import Engine
from syrtos.errors import ConfigurationError


def names() -> list[str]:
    """Returns the names of all engines."""
    own = [found.name for found in pkgutil.iter_modules(syrtos.engines.__path__) if found.ispkg]
    return sorted({*own, *entry_points.names(entry_points.ENGINES)})


def engine_of(name: str) -> Engine:
    """Returns the engine of a name.

    Raises:
        ConfigurationError: there is none, or a package that it needs is not installed.
    """
    if name in entry_points.names(entry_points.ENGINES):
        try:
            return entry_points.load_instance(entry_points.ENGINES, name, Engine)
        except ConfigurationError as error:
            missing = error.__cause__
            if not isinstance(missing, ModuleNotFoundError) or entry_points.is_defect(missing):
                raise
            raise ConfigurationError(
                f"`--on {name}` needs the package {missing.name}: `pip install 'syrtos[{name}]'`."
            ) from missing
    if name not in names():
        raise ConfigurationError(
            f"`--on {name}`: there is no such engine. There are: {', '.join(names())}."
        )
    return importlib.import_module(f"syrtos.engines.{name}").ENGINE
