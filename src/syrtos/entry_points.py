"""The entry points by which other packages add to syrtos: objects by their names, in groups.

The packages beside `syrtos` in its own wheel (`syrtos_jobs`, `syrtos_tune` ...) come by them too.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from syrtos.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

KindT = TypeVar("KindT")

# Modules with `add_to`, by the name of the command.
COMMANDS = "syrtos.commands"
DIALECTS, ENGINES, FEATURES = "syrtos.dialects", "syrtos.engines", "syrtos.features"
# Functions that rewrite a script for `syrtos doctor --fix`.
FIXES = "syrtos.fixes"
# Modules with `apply_all` and `apply_to_optimizers`, by the package of a Keras other than 3: `tf_keras`.
KERAS_VERSIONS = "syrtos.keras_versions"
# Instances of `syrtos.cli.named_runs.NamedRuns`.
NAMED_RUNS = "syrtos.named_runs"
# Attributes of the module `syrtos`.
NAMES = "syrtos.names"
# Functions that replace `fit` by a trial of `syrtos tune`.
TRIALS = "syrtos.trials"


def names(group: str) -> list[str]:
    """Returns the names of the entry points of a group, sorted; nothing is loaded."""
    return sorted({point.name for point in _of_path(group, tuple(sys.path))})


# Any: an entry point may name anything.
def load(group: str, name: str) -> Any:
    """Imports what the entry point of this name names.

    Raises:
        ConfigurationError: no package uses the name, or two do; or the import fails, of which it
            names the package.
    """
    found = {point for point in _of_path(group, tuple(sys.path)) if point.name == name}
    if not found:
        raise ConfigurationError(
            f"No package that is installed has an entry point `{name}` of the group {group}. Where"
            " it was one of syrtos's own, install syrtos again: `pip install --force-reinstall"
            " --no-deps` with its path or name."
        )
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
        if isinstance(error, ModuleNotFoundError) and (needs := missing_packages(error)):
            raise ConfigurationError(needs) from error
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


def is_defect(error: ModuleNotFoundError) -> bool:
    """Returns whether the module that is missing is one of syrtos's own, and no package to install."""
    return (error.name or "syrtos").startswith("syrtos")


def missing_packages(error: ModuleNotFoundError) -> str:
    """Returns the sentence that names the packages which a package beside syrtos needs.

    A package says by its constant ``EXTRA`` which extra of its distribution they are. The text is
    empty where no package on the way to the import has one, and where it `is_defect`.
    """
    # Only here: it takes longer to import than this file.
    import traceback

    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
    found = [(name, extra) for name in names if (extra := _extra_of(name))]
    if not found or is_defect(error):
        return ""
    from importlib.metadata import packages_distributions, requires

    package, extra = found[-1]
    # By their names, since a checkout or a wheel may be what the package was installed from.
    wanted = [
        requirement.partition(";")
        for distribution in set(packages_distributions().get(package, ()))
        for requirement in requires(distribution) or ()
    ]
    texts = [
        f"'{text.strip()}'" for text, _, mark in wanted if mark.strip() == f'extra == "{extra}"'
    ]
    return (
        f"This needs the package {error.name}, of the extra `{extra}`: `pip install"
        f" {' '.join(texts)}`."
    )


def _extra_of(package: str) -> str:
    return getattr(sys.modules.get(package), "EXTRA", "")


@functools.lru_cache(maxsize=16)
def _of_path(group: str, path: tuple[str, ...]) -> EntryPoints:
    # Only here: it takes longer to import than all of a small script.
    from importlib.metadata import entry_points

    return entry_points(group=group)
