"""Values that do not travel from a notebook to its workers, with the reasons and remedies."""

from __future__ import annotations

import io
import sys

_BUILD = "Build it inside the function: each worker makes its own, and syrtos keeps them equal."
_OPEN = "Open it inside the function, by its name."

# By the package and the name of a class; the classes of a value are looked up from its own to the
# most general one. Frameworks are not imported for this.
_KINDS: dict[tuple[str, str], tuple[str, str]] = {
    ("keras", "Model"): ("a Keras model", _BUILD),
    ("tf_keras", "Model"): ("a Keras model", _BUILD),
    ("keras", "Layer"): ("a Keras layer", _BUILD),
    ("tf_keras", "Layer"): ("a Keras layer", _BUILD),
    ("keras", "BaseOptimizer"): ("a Keras optimizer", _BUILD),
    ("tf_keras", "_BaseOptimizer"): ("a Keras optimizer", _BUILD),
    ("keras", "Variable"): ("a Keras variable", _BUILD),
    ("keras", "KerasSaveable"): ("a Keras object with a state", _BUILD),
    ("tensorflow", "Variable"): ("a TensorFlow variable", _BUILD),
    ("tensorflow", "DatasetV2"): (
        "a tf.data.Dataset, which is a part of this process's TensorFlow",
        "Build it inside the function, from arrays or files.",
    ),
    ("tensorflow", "StrategyBase"): (
        "a tf.distribute strategy",
        "Leave it out: syrtos distributes the function.",
    ),
    ("torch", "Module"): ("a torch module", _BUILD),
    ("builtins", "generator"): (
        "a generator",
        "Hand over the values as a list, or the function that makes them.",
    ),
    ("builtins", "coroutine"): ("a coroutine", "Hand over the function that makes it."),
    ("_thread", "lock"): (
        "a lock, which only threads of one process share",
        "Make it inside the function.",
    ),
    ("_thread", "RLock"): (
        "a lock, which only threads of one process share",
        "Make it inside the function.",
    ),
    ("_socket", "socket"): ("an open connection", "Connect inside the function."),
    ("sqlite3", "Connection"): ("an open data base", _OPEN),
    ("h5py", "HLObject"): ("an open HDF5 file, or a part of one", _OPEN),
}
_STANDARD = ("stdin", "stdout", "stderr")


class CannotTravel(Exception):
    """A value can't travel.

    Attributes:
        what: the kind of the value, as the end of "it is ...".
        fix: a sentence that says what to do.
    """

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)
        self.what, self.fix = what, fix


def check(value: object) -> None:
    """Raises CannotTravel for a value of a kind that does not travel, even if it can be pickled."""
    if isinstance(value, io.IOBase) and not isinstance(value, io.BytesIO | io.StringIO):
        if not any(value is getattr(sys, name) for name in _STANDARD):
            raise CannotTravel(f"an open file ({getattr(value, 'name', 'without a name')})", _OPEN)
        return
    for kind in type(value).__mro__:
        if found := _KINDS.get((kind.__module__.partition(".")[0], kind.__name__)):
            raise CannotTravel(*found)


def of(error: Exception) -> CannotTravel:
    """Returns the refusal of a value that pickle has failed on."""
    if isinstance(error, CannotTravel):
        return error
    return CannotTravel(
        f"something that can't be copied to another process ({type(error).__name__}: {error})",
        "Make it inside the function, from values that can: numbers, texts, arrays, lists, dicts.",
    )
