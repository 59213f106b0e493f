"""Names the lines of the script in errors of a program's operations.

TensorFlow does so in one process: it keeps where each operation was made. Those of a worker's part
of a program were all made where it is emitted; those of the traced program, which have the same
names, where the script calls.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import tensorflow as tf

from syrtos.keras.tensorflow import tf_internals_emission, tf_internals_errors
from syrtos.keras.tensorflow.tf_internals_emission import TracedGraph
from syrtos.own_packages import FOLDERS

# TensorFlow leaves out its own files too.
_LEFT_OUT = (*FOLDERS, str(Path(str(tf.__file__)).parent) + os.sep)
_PLACE = re.compile(
    r"(?P<head>Detected at node (?P<name>\S+) defined at \(most recent call last\):\n)"
    r"(?P<frames>(?:[ \t]*(?:File |<)[^\n]*\n|[ \t]*\n)*)"
)
# What TensorFlow adds to a name that a graph has already.
_NUMBER = re.compile(r"_\d+$")


@contextlib.contextmanager
def naming_lines(graphs: Iterable[TracedGraph]) -> Iterator[None]:
    """Context manager: errors of operations that leave it name the lines of the script.

    ``graphs``: of the traced programs, looked at once there is an error.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if isinstance(error.message, str) and _PLACE.search(error.message):
            tf_internals_errors.replace_message(error, _with_lines(error.message, graphs))
        raise


def _with_lines(message: str, graphs: Iterable[TracedGraph]) -> str:
    known = {
        op.name: op for graph in graphs for op in tf_internals_emission.operations_within(graph)
    }

    def replace(found: re.Match[str]) -> str:
        operation = _find(known, found["name"])
        if operation is None:
            return found[0]
        frames = [
            f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n'
            for frame in operation.traceback or ()
            if not frame.filename.startswith(_LEFT_OUT)
        ]
        return found["head"] + "".join(frames) + "\n"

    return _PLACE.sub(replace, message)


def _find(known: Mapping[str, tf.Operation], name: str) -> tf.Operation | None:
    """Returns the traced operation of an emitted one, which may be numbered, or in a branch."""
    while name:
        if operation := known.get(name) or known.get(_NUMBER.sub("", name)):
            return operation
        name = name.partition("/")[2]
    return None
