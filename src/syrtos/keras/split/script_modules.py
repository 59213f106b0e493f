"""The modules of the script: its own file, and those beside it, without what is installed."""

from __future__ import annotations

import functools
import pathlib
import re
import sys
import sysconfig
import types

from syrtos.keras.keras_origin import is_of_syrtos

# Folders in which Python and packages are installed.
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib"))


def _file_of(module: types.ModuleType | None) -> str:
    # From its dictionary: a module that loads lazily would import others when it is asked for its
    # file.
    return getattr(module, "__dict__", {}).get("__file__") or ""


def script_mentions(pattern: str) -> bool:
    """Returns whether a regular expression matches text of the script or of its imported modules.

    Installed modules are left out.
    """
    files = {
        file
        for name, module in list(sys.modules.items())
        if is_name_of_script(name)
        and ((file := _file_of(module)).endswith(".py") or name == "__main__")
    }
    return any(re.search(pattern, _text_of(file)) for file in files)


@functools.lru_cache(maxsize=256)
def _text_of(file: str) -> str:
    try:
        return pathlib.Path(file).read_text(errors="replace")
    except OSError:
        return ""


def is_name_of_script(name: str) -> bool:
    """Returns whether a module that is loaded is the script's, by its name."""
    # syrtos itself may be run from its source, which is no installed package.
    return not is_of_syrtos(name) and name != "builtins" and _is_file_of_script(name)


@functools.lru_cache(maxsize=1 << 14)
def _is_file_of_script(name: str) -> bool:
    file = _file_of(sys.modules.get(name))
    return name == "__main__" or bool(file and not file.startswith(_INSTALLED))
