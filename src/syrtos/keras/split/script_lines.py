"""Finds the line of the script that calls a backend of Keras."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from syrtos.own_packages import FOLDERS

_OF_KERAS = f"{os.sep}keras{os.sep}src{os.sep}"
_OF_KERAS_2 = f"{os.sep}tf_keras{os.sep}"
_OLD_BACKENDS = tuple(
    os.path.join(*path, "backend.py") for path in (("keras", "src", "legacy"), ("tf_keras", "src"))
)
# Files of a backend of Keras that do more than call it.
_THICK = ("trainer.py", "layer.py", "optimizer_distribute_strategy.py", "rnn.py")


def line_of_script(frames: Iterable[tuple[str, int]], library: str, backend: str) -> str:
    """Names the line by which the script, or a library that it uses, calls a backend.

    The result is empty if Keras or syrtos makes the call.

    Args:
        frames: the file and the line of each call, from the innermost on.
        library: the folder of what Keras computes with.
        backend: the name of Keras's backend. Its files, and `keras.ops`, only call the library:
            what calls them counts.

    Returns:
        Such as ``train.py, line 7``.
    """
    thin = (f"{_OF_KERAS}ops{os.sep}", f"{_OF_KERAS}backend{os.sep}{backend}{os.sep}")
    for path, number in frames:
        is_thin = path.endswith(_OLD_BACKENDS) or (
            any(one in path for one in thin) and not path.endswith(_THICK)
        )
        if not (path.startswith(library + os.sep) or is_thin):
            is_known = path.startswith(FOLDERS) or _OF_KERAS in path or _OF_KERAS_2 in path
            return "" if is_known else f"{Path(path).name}, line {number}"
    return ""
