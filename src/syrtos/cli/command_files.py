"""The commands by their names: those of this room, and those of other packages by entry points.

The group of the entry points is ``syrtos.commands``: each names a module with `add_to`, and with
``TITLE``, the heading under which `syrtos -h` lists the command.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

from syrtos import entry_points

# The file of each command: only that of the one that is asked for is imported, which takes half of
# the time.
_OURS = {
    "train": {"init": "init", "run": "run", "resume": "resume", "resize": "resize", "status": "status", "logs": "status", "attach": "attach", "stop": "status"},
    "look before and after": {
        "check": "check", "doctor": "doctor", "verify": "verify", "report": "report", "forecast": "forecast", "track": "track", "data": "data",
        "env": "env", "completion": "completion",
    },
    "commands of other launchers": {"horovodrun": "horovodrun", "smddprun": "horovodrun"},
}  # fmt: skip
_FILES = {command: file for group in _OURS.values() for command, file in group.items()}


def is_ours(command: str) -> bool:
    """Returns whether a command stands in this room; entry points are not looked at."""
    return command in _FILES


def names() -> list[str]:
    """Returns the names of all commands."""
    return [*_FILES, *_names_of_others()]


def why_absent() -> str:
    """Returns why syrtos's own commands of other packages are not there; empty if they are."""
    if _names_of_others():
        return ""
    return (
        " `submit`, `tune` and others are found where syrtos is installed (`pip install .`), and"
        " not where it is only on the path."
    )


def modules(command: str = "") -> Sequence[ModuleType]:
    """Imports the modules that add commands to the parser.

    With the name of a command it is the module of that one alone.

    Raises:
        ConfigurationError: another package's command can't be imported.
    """
    if command in _FILES:
        return [_import_file(_FILES[command])]
    others = _names_of_others()
    if command in others:
        return [_import_other(command)]
    found = [_import_file(file) for file in dict.fromkeys(_FILES.values())]
    return [*found, *dict.fromkeys(_import_other(name) for name in others)]


def by_title() -> dict[str, list[str]]:
    """Returns the names of all commands under their headings."""
    found = {title: list(group) for title, group in _OURS.items()}
    for name in _names_of_others():
        title = getattr(_import_other(name), "TITLE", "commands of other packages")
        found.setdefault(title, []).append(name)
    return found


def _names_of_others() -> list[str]:
    """Returns the names in entry points. A name of this room means the command of this room."""
    return [name for name in entry_points.names(entry_points.COMMANDS) if name not in _FILES]


def _import_file(name: str) -> ModuleType:
    return importlib.import_module(f"syrtos.cli.{name}")


def _import_other(name: str) -> ModuleType:
    return entry_points.load_instance(entry_points.COMMANDS, name, ModuleType)
