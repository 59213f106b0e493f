"""The entry points by which other packages add to syrtos: objects by their names, in groups."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from syrtos.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

KindT = TypeVar("KindT")

DIALECTS, ENGINES, FEATURES = "syrtos.dialects", "syrtos.engines", "syrtos.features"


def names(group: str) -> list[str]:
    """Returns the names of the entry points of a group, sorted; nothing is loaded."""
    return sorted({point.name for point in _of_path(group, tuple(sys.path))})


# Any: an entry point may name anything.
def load(group: str, name: str) -> Any:
    """Imports what the entry point of this name names.

    Raises:
        ConfigurationError: two packages use the name; or the import fails, of which it names the
            package.
    """
    found = {point for point in _of_path(group, tuple(sys.path)) if point.name == name}
    if len(found) > 1:
        values = " and ".join(sorted(point.value for point in found))
        raise ConfigurationError(
            f"Two packages name an entry point `{name}` of the group {group}: {values}. Uninstall"
            " one of them."
        )
    point = next(iter(found))
    try:
        return point.load()
    except Exception as error:
        package = point.dist.name if point.dist else "a package"
        raise ConfigurationError(
            f"The entry point `{name} = {point.value}` of {package}, in the group {group}, could"
            f" not be loaded: {type(error).__name__}: {error}. Mend or uninstall that package."
        ) from error


def load_instance(group: str, name: str, kind: type[KindT]) -> KindT:
    """Imports the instance of a class that the entry point of this name names.

    Raises:
        ConfigurationError: as `load` does, or it is no instance of ``kind``.
    """
    found = load(group, name)
    if not isinstance(found, kind):
        raise ConfigurationError(
            f"The entry point `{name}` of the group {group} should name an instance of"
            f" `{kind.__module__}.{kind.__name__}`. It names {found!r}."
        )
    return found


@functools.lru_cache(maxsize=8)
def _of_path(group: str, path: tuple[str, ...]) -> EntryPoints:
    # Only here: it takes longer to import than all of a small script.
    from importlib.metadata import entry_points

    return entry_points(group=group)
