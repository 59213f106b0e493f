"""Makes errors of exchanges TensorFlow's errors too, for scripts that catch TensorFlow's classes.

They are caught eagerly and in graphs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from syrtos.comm import world
from syrtos.errors import (
    ExchangeError,
    OutOfStepError,
    SharedMemoryError,
    StalledError,
    SyrtosError,
)
from syrtos.keras.tensorflow import tf_internals_errors

# The first that fits: the classes that Horovod raises for the same mistakes (horovod 0.28.1,
# common/controller.cc and tensorflow/mpi_ops.cc).
_CLASSES: tuple[tuple[type[SyrtosError], type[tf.errors.OpError]], ...] = (
    (OutOfStepError, tf.errors.FailedPreconditionError),
    (StalledError, tf.errors.UnknownError),
    (SharedMemoryError, tf.errors.ResourceExhaustedError),
    (ExchangeError, tf.errors.InvalidArgumentError),
    (SyrtosError, tf.errors.UnknownError),
)


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Makes syrtos's errors that leave the context TensorFlow's errors as well.

    Afterwards syrtos's errors that leave a graph are, too.
    """
    _convert_in_graphs()
    try:
        yield
    except SyrtosError as error:
        raise of_tensorflow(error) from None


@functools.cache
def _convert_in_graphs() -> None:
    tf_internals_errors.convert_errors(_original)


def _original(error: BaseException) -> BaseException:
    """Returns the syrtos error that a TensorFlow error quotes, as an error of both kinds.

    It returns ``error`` itself if no syrtos error is quoted.
    """
    found = world.original_of(error)
    return of_tensorflow(found) if isinstance(found, SyrtosError) else error


def of_tensorflow(error: SyrtosError) -> SyrtosError:
    """Returns the error, also as an instance of the class that TensorFlow's operations raise."""
    if isinstance(error, tf.errors.OpError):
        return error
    theirs = next(theirs for ours, theirs in _CLASSES if isinstance(error, ours))
    both = _both(type(error), theirs)
    made = both.__new__(both)
    initialize: Any = (
        theirs.__init__
    )  # the stub asks for a fourth argument, which these classes set themselves
    initialize(made, None, None, str(error))  # not by the class: ours may take arguments of its own
    vars(made).update(vars(error))
    return made.with_traceback(error.__traceback__)


@functools.cache
def _both(ours: type[SyrtosError], theirs: type[tf.errors.OpError]) -> type[SyrtosError]:
    """Returns a class derived from both, with the name of ``ours``."""
    return type(
        ours.__name__, (ours, theirs), {"__module__": ours.__module__, "__doc__": ours.__doc__}
    )
