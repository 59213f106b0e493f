"""The modules of the script: its own file, and those beside it, without what is installed."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import sys
import sysconfig
import types

# Folders in which Python and packages are installed.
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib"))


def modules_of_script() -> list[types.ModuleType]:
    """Returns the script and the imported modules in its folder or subfolders, each once."""
    script = sys.modules["__main__"]
    folder = os.path.dirname(os.path.abspath(getattr(script, "__file__", None) or "."))
    # A module that is imported, also once more, becomes the last one.
    return [script, *_modules_in(folder, len(sys.modules), next(reversed(sys.modules)))]


# Asked several times in a comparison, and there are some thousand modules.
@functools.lru_cache(maxsize=1)
def _modules_in(folder: str, count: int, newest: str) -> list[types.ModuleType]:
    """Returns the modules of the script in a folder, without the script itself.

    ``count``: the number of all imported modules; ``newest``: the name of the last one. A cached
    result is used as long as both stay the same.
    """
    found = [sys.modules["__main__"]]
    for name, module in list(sys.modules.items()):
        file = _file_of(module)
        is_inside = os.path.abspath(file).startswith(folder + os.sep)
        if file and is_inside and _is_name_of_script(name) and module not in found:
            found.append(module)
    return found[1:]


def _file_of(module: types.ModuleType | None) -> str:
    # From its dictionary: a module that loads lazily would import others when it is asked for its
    # file.
    return getattr(module, "__dict__", {}).get("__file__") or ""


def script_mentions(pattern: str) -> bool:
    """Returns whether a regular expression matches text of the script or of its imported modules.

    Installed modules are left out.
    """
    files = {
        _file_of(module) for name, module in list(sys.modules.items()) if _is_name_of_script(name)
    }
    return any(re.search(pattern, _text_of(file)) for file in files if file.endswith(".py"))


@functools.lru_cache(maxsize=256)
def _text_of(file: str) -> str:
    try:
        return pathlib.Path(file).read_text(errors="replace")
    except OSError:
        return ""


def is_of_script(kind: object) -> bool:
    """Returns whether a class or function is from the script or a module that is not installed."""
    return _is_name_of_script(str(getattr(kind, "__module__", None) or ""))


def _is_name_of_script(name: str) -> bool:
    # syrtos itself may be run from its source, which is no installed package.
    return name.partition(".")[0] not in ("syrtos", "builtins") and _is_file_of_script(name)


# Asked of each class that a model or the script holds, at each comparison.
@functools.lru_cache(maxsize=1 << 14)
def _is_file_of_script(name: str) -> bool:
    file = _file_of(sys.modules.get(name))
    return name == "__main__" or bool(file and not file.startswith(_INSTALLED))
