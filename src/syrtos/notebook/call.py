"""The program of a notebook's workers.

It reads a function from standard input, or from where a variable says, calls it, and gives back
rank 0's result.
"""

from __future__ import annotations

import copy
import io
import linecache
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from syrtos import api
from syrtos.errors import ConfigurationError
from syrtos.launch.worker.import_hook import after_import
from syrtos.notebook import parcel
from syrtos.settings import CALL_VARIABLE, take


def main() -> None:
    """Runs the function that the notebook has sent.

    Raises:
        ConfigurationError: standard input holds no function of a notebook.
    """
    source, _, result_path = take(CALL_VARIABLE).partition(":")
    source = source or "/proc/self/fd/0"
    # nothing else is unpickled
    if not os.readlink(source).startswith(f"/memfd:{parcel.NAME} "):
        raise ConfigurationError(
            "The function of this run was in the memory of the program that called it, and is gone:"
            " call it there again."
        )
    file = open(source, "rb") if result_path else sys.stdin.buffer  # noqa: SIM115 - it is read to the end of the call
    head, function_and_args = parcel.unpack(file)
    sys.path[:] = head.path
    linecache.cache.update(
        {name: (sum(map(len, lines)), None, lines, name) for name, lines in head.sources.items()}
    )
    after_import("keras", lambda: _configure(head.keras))
    function, args = function_and_args()
    # pickle looks for the notebook's classes in this module
    vars(sys.modules["__main__"]).update(getattr(function, "__globals__", {}))
    result = function(*args)
    if api.rank() == 0:
        Path(result_path or head.result).write_bytes(_pack_result(result))


def _configure(settings: dict[str, str]) -> None:
    for name, value in settings.items():
        getattr(sys.modules["keras"].config, name)(value)


def _pack_result(result: object) -> bytes:
    """Returns the pickled ``(result, "")``, or ``(None, reason)`` if the result can't travel.

    The notebook finds the classes that it has defined by their names.
    """
    try:
        file = io.BytesIO()
        _Results(file, protocol=pickle.HIGHEST_PROTOCOL).dump((result, ""))
        return file.getvalue()
    except Exception as error:
        return pickle.dumps((None, f"{type(result).__name__} ({type(error).__name__}: {error})"))


class _Results(pickle.Pickler):
    def reducer_override(self, obj: object) -> str | tuple[Any, ...]:
        """Makes a Keras History travel without its model."""
        model = getattr(obj, "_model", None) if type(obj).__name__ == "History" else None
        if model is None:
            return NotImplemented
        bare = copy.copy(obj)
        vars(bare)["_model"] = None
        return bare.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    # not this module: its names would mix with those of the notebook
    from syrtos.notebook import call

    call.main()
