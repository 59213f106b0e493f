"""Suggestions for misspelt names in tracebacks, as Python prints them.

Python 3.11 computes them only where the interpreter itself prints an uncaught error; `traceback` of
later versions does so too.
"""

from __future__ import annotations

import builtins
import re
import sys
import traceback

from syrtos.launch.spelling import closest_name

_NOT_IMPORTED = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")


def add_suggestions(shown: traceback.TracebackException, error: BaseException) -> None:
    """Adds "Did you mean" to the texts of an error, and of those that it came from.

    Args:
        shown: the error, ready to be printed.
        error: the error itself, with its objects.
    """
    # Not by `str`, which may call a method of anyone's and fail.
    text = vars(shown)["_str"]
    if "Did you mean" not in text and (name := suggest_name(error)):
        vars(shown)["_str"] = f"{text}. Did you mean: {name!r}?"
    if shown.__cause__ is not None and error.__cause__ is not None:
        add_suggestions(shown.__cause__, error.__cause__)
    if shown.__context__ is not None and error.__context__ is not None:
        add_suggestions(shown.__context__, error.__context__)


def suggest_name(error: BaseException) -> str | None:
    """Returns the name that was meant by an AttributeError, ImportError or NameError.

    Returns None if no name is like it.
    """
    try:
        if isinstance(error, AttributeError) and error.name:
            return closest_name(error.name, dir(error.obj))
        if isinstance(error, ImportError) and (found := _NOT_IMPORTED.match(str(error))):
            return closest_name(found[1], dir(sys.modules[found[2]]))
        if isinstance(error, NameError) and error.name:
            return closest_name(error.name, _visible_names(error))
    except Exception:
        # An object's own `__dir__` runs code of anyone.
        return None
    return None


def _visible_names(error: BaseException) -> set[str]:
    """Returns the names that could be read where an error was raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return {*dir(builtins), *frames[-1].f_globals, *frames[-1].f_locals} if frames else set()
