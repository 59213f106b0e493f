"""A parcel: a function and all that it needs, in a memory file that this process's workers inherit.

Pickle runs whatever code it holds. The data that is unpickled here never was on a disk: it goes
from this process to processes that it has started, and back, through files without a name
(memfd_create(2)), which only processes of this user can open, through this process's own
descriptors. To other hosts it goes over what has started their agents, which runs commands there.
"""

from __future__ import annotations

import dataclasses
import dis
import importlib
import linecache
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING

from syrtos.errors import ConfigurationError
from syrtos.notebook import refusals
from syrtos.settings import CALL_NAME

if TYPE_CHECKING:
    from cloudpickle import Pickler

# The name of memory files, for people who look at a process.
NAME = CALL_NAME
# The most bytes of a parcel: each worker gets a copy.
LARGEST = 1 << 30


@dataclasses.dataclass(frozen=True)
class Head:
    """The facts that a worker must know before it unpickles the function.

    Attributes:
        path: ``sys.path`` of the notebook, by which modules are found.
        sources: lines of the cells, by the names that tracebacks have for the cells.
        keras: functions of ``keras.config``, each with the argument that gives Keras the settings
            it has in the notebook.
        result: the path of the file that rank 0 writes the result to.
    """

    path: list[str]
    sources: dict[str, list[str]]
    keras: dict[str, str]
    result: str


def pack(
    function: Callable[..., object], args: Sequence[object], result: str, file: IO[bytes]
) -> None:
    """Writes a parcel into ``file``, and goes to its start.

    Raises:
        ConfigurationError: something can't travel; the message names it, with the reason and a
            remedy.
    """
    pickle.dump(
        dataclasses.asdict(Head(list(sys.path), _sources(), _keras_settings(), result)), file
    )
    limited = _Limited(file, LARGEST)
    try:
        _pickler(limited).dump((function, tuple(args)))
    except Exception as error:
        raise ConfigurationError(_name_culprit(function, args, error)) from None
    file.flush()
    os.lseek(file.fileno(), 0, os.SEEK_SET)


def unpack(
    file: IO[bytes],
) -> tuple[Head, Callable[[], tuple[Callable[..., object], tuple[object, ...]]]]:
    """Returns the head of a parcel, and a function that returns the packed function and arguments.

    The returned function must be called after `Head.path` is in place.
    """
    return Head(**pickle.load(file)), lambda: pickle.load(file)


def _sources() -> dict[str, list[str]]:
    """Returns the lines of cells by name."""
    # Cells are no files: a worker could not show their lines in a traceback otherwise.
    return {
        name: list(entry[2])
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and not os.path.exists(name)
    }


def _keras_settings() -> dict[str, str]:
    """Returns the settings for models that are built later, if they are not the defaults.

    Mixed precision is such a setting.
    """
    config = getattr(sys.modules.get("keras"), "config", None)
    if config is None:
        return {}
    found = {
        "set_floatx": config.floatx(),
        "set_image_data_format": config.image_data_format(),
        "set_dtype_policy": config.dtype_policy().name,
    }
    return {
        name: value for name, value in found.items() if value not in ("float32", "channels_last")
    }


# -- pickling ------------------------------------------------------------------------------------


class _TooLarge(Exception):
    pass


class _Limited:
    """Passes on, or drops, at most ``most`` bytes.

    It has as much of a file's interface as pickle needs.
    """

    def __init__(self, file: IO[bytes] | None, most: int) -> None:
        self._file, self._most, self.size = file, most, 0

    def write(self, data: bytes | memoryview) -> int:
        count = memoryview(data).nbytes
        self.size += count
        if self.size > self._most:
            raise _TooLarge
        if self._file:
            self._file.write(data)
        return count


def _pickler(file: _Limited) -> Pickler:
    """Returns a pickler that takes notebook definitions by value, and those of modules by name.

    Raises:
        ConfigurationError: cloudpickle is not installed.
    """
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ImportError as error:
        raise ConfigurationError(
            "A function travels to workers by a package that is not installed: `pip install"
            " cloudpickle`."
        ) from error

    class Checked(cloudpickle.Pickler):
        def reducer_override(self, obj: object) -> object:
            refusals.check(obj)
            return super().reducer_override(obj)

    return Checked(file, protocol=pickle.HIGHEST_PROTOCOL)


def _try_pickling(value: object) -> Exception | int:
    """Returns the error that pickling a value raises, or the number of bytes that it takes."""
    counted = _Limited(None, LARGEST)
    try:
        _pickler(counted).dump(value)
    except Exception as error:
        return error
    return counted.size


# -- naming what can't travel --------------------------------------------------------------------


def _name_culprit(function: Callable[..., object], args: Sequence[object], error: Exception) -> str:
    """Returns sentences that name the variable of a function that is the reason for an error."""
    if isinstance(error, ConfigurationError):
        return str(error)
    name, reason = _culprit(function, args, set()) or ("the function", error)
    if isinstance(reason, _TooLarge):
        return _too_large(function, args, name)
    refused = refusals.of(reason)
    return (
        f"The function can't take {name} to the workers: it is {refused.what}. {refused.fix}"
        " Nothing was started."
    )


def _culprit(
    function: object, args: Sequence[object], seen: set[int]
) -> tuple[str, Exception] | None:
    for name, value in _variables(function, args):
        if id(value) in seen or not isinstance(error := _try_pickling(value), Exception):
            continue
        seen.add(id(value))
        inner = _culprit(value, (), seen) if isinstance(value, types.FunctionType | type) else None
        return (f"{inner[0]}, which {name} uses", inner[1]) if inner else (name, error)
    return None


def _too_large(function: object, args: Sequence[object], name: str) -> str:
    sizes = [
        (name, size)
        for name, value in _variables(function, args)
        if isinstance(size := _try_pickling(value), int)
    ]
    largest = sorted(sizes, key=lambda item: -item[1])[:3]
    what = (
        ", ".join(f"{name} ({size / 1e9:.1f} GB)" for name, size in largest)
        if name == "the function"
        else name
    )
    return (
        f"A function takes at most {LARGEST / 1e9:.1f} GB to the workers, each of which gets a"
        f" copy, and this one needs more: {what}. Save it (`numpy.save`) and open the"
        " file inside the function (`numpy.load(..., mmap_mode='r')`), or load the data there."
        " Nothing was started."
    )


def _variables(function: object, args: Sequence[object]) -> Iterator[tuple[str, object]]:
    """Yields the values that a function, or a class's methods, take along, each with a name."""
    yield from ((f"args[{number}]", value) for number, value in enumerate(args))
    if isinstance(function, type):
        yield from (
            (f"`{function.__name__}.{name}`", value)
            for name, value in vars(function).items()
            if not name.startswith("__")
        )
    if not isinstance(function, types.FunctionType):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # An empty cell has no value yet.
        if cell != types.CellType():
            yield f"`{name}`", cell.cell_contents
    yield from (
        (f"`{name}`", function.__globals__[name])
        for name in _globals(function.__code__)
        if name in function.__globals__
    )
    yield from (
        (f"a default value of `{function.__name__}`", value)
        for value in function.__defaults__ or ()
    )


def _globals(code: types.CodeType) -> dict[str, None]:
    """Returns the names of global variables that code and the functions inside it read."""
    found = {
        step.argval: None for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"
    }
    for inner in (constant for constant in code.co_consts if isinstance(constant, types.CodeType)):
        found |= _globals(inner)
    return found
