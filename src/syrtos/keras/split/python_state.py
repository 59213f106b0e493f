"""The state in Python that a step changes beside its variables.

It is in numbers, lists and dictionaries of a model, of its parts and of the script, and in generators of random
numbers.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import functools
import io
import itertools
import os
import random
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from syrtos.keras import keras_internals

_PLAIN = (int, float, str, bytes, type(None), np.generic)
# What a step may give a name anew: `self.scores = self.scores + [score]` makes another list.
_VALUES = (*_PLAIN, list, dict, set, tuple, collections.deque, bytearray, np.ndarray)
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
# Containers with more elements than these are data of the script, which a step reads; those with still more are not
# copied.
_LARGEST, _LARGEST_COPIED = 10_000, 200_000
# Bytes of arrays and tensors that are copied at most; what is larger, or comes later, is taken for data too.
_ROOM = 128 << 20
_DEPTH = 4
# Iterators whose copies draw from nothing that they draw from.
_WITH_COPIES = ("list_iterator", "tuple_iterator", "range_iterator", "longrange_iterator", "count", "repeat")
# Iterators of libraries that are lent too, by their modules: what was drawn is handed out again.
_LENT = ("builtins", "itertools", "torch.utils.data.dataloader")
_OF_PYTHON = tuple(sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib"))


@contextlib.contextmanager
def keeping_python_state(
    model: Any, generators: bool = True, hooks: Iterable[Callable[..., Any]] = ()
) -> Iterator[list[Change]]:
    """Context manager: restores, at its end, what Python code of the script has changed.

    That is numbers, texts, containers, tensors, random generators, and what has a `state_dict` (optimizers of torch
    and their schedules, modules that are no part of the model). A model, its parts and the globals of the script and
    of the modules beside it hold these, also in namespaces, in objects of the script's own classes, in these classes,
    and in closures and arguments of functions. Of iterators of Python and of torch's `DataLoader` a copy is lent. What
    only a library knows is not restored. Attributes that were made on a built model meanwhile are removed. What is
    printed meanwhile is not shown.

    Args:
        model: the one whose step runs inside.
        generators: whether the global generators of NumPy and Python are restored too.
        hooks: functions of the script that a framework calls.

    Yields:
        A list that gets the numbers that were changed, when they are restored.
    """
    changes: list[Change] = []
    known = set(vars(model)) if getattr(model, "built", False) else None
    kept = _Kept(model)
    for part in [model, *keras_internals.layers_of(model), *model.metrics, *keras_internals.compiled_parts(model)]:
        kept.keep_attributes(part)
    for module in _modules_of_script():
        names = vars(module)
        kept.keep_values(dict(names), names.__setitem__, now=names)
    for hook in hooks:
        kept.keep(hook)
    drawn = np.random.get_state(), random.getstate()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield changes
    finally:
        changes += kept.changes()
        made = [name for name in vars(model) if known is not None and name not in known and not name.startswith("_")]
        for name in made:
            if change := _change_of(f"{model.name}.{name}", None, numbers_of(vars(model)[name])):
                changes.append(change)
            delattr(model, name)  # e.g. an optimizer that a step makes when it has none
        kept.restore()
        if generators:
            np.random.set_state(drawn[0])
            random.setstate(drawn[1])


class Change(NamedTuple):
    """Numbers that Python code has changed.

    Attributes:
        name: where they are held.
        before: their values before, float64.
        after: their values after, float64; NaN where there are no numbers any more.
    """

    name: str
    before: npt.NDArray[np.float64]
    after: npt.NDArray[np.float64]


_Numbers = npt.NDArray[np.float64] | None


def _change_of(name: str, before: _Numbers, after: _Numbers) -> Change | None:
    """Returns the change of numbers, of which there may be none before or after; None where nothing has changed."""
    if before is None:  # numbers that were not there count as zero
        return None if after is None else Change(name, np.zeros_like(after), after)
    if after is not None and np.array_equal(before, after, equal_nan=True):
        return None
    return Change(name, before, np.full(1, np.nan) if after is None else after)


class _Kept:
    """Values that Python code changes without a trace elsewhere, and how to put them back."""

    def __init__(self, model: Any) -> None:
        """``model``: its parameters and buffers are kept by themselves."""
        self._of_model = {id(tensor) for tensor in _tensors_of(model)}
        self._numbers: list[tuple[str, _Numbers, Callable[[], Any]]] = []
        self._seen: dict[int, Any] = {}  # the objects too: an identity is that of another object once its own is gone
        self._undo: list[Callable[[], None]] = []
        self._room = _ROOM

    def restore(self) -> None:
        """Puts everything back."""
        for undo in self._undo:
            with contextlib.suppress(Exception):  # an object that can't be put back stays as it is
                undo()

    def changes(self) -> list[Change]:
        """Returns the numbers that are others than before, in the order in which they were found."""
        now = ((name, before, _read_numbers(read)) for name, before, read in self._numbers)
        return [change for each in now if (change := _change_of(*each))]

    def _watch(self, name: str, value: Any, read: Callable[[], Any]) -> None:
        """Notes numbers, or that there are none yet; ``read`` gives them again later."""
        before = numbers_of(value)
        if before is not None or value is None:
            self._numbers.append((name, before, read))

    def keep_attributes(self, part: Any, depth: int = _DEPTH) -> None:
        """Keeps the attributes of an object, and those of its class where that is the script's."""
        if id(part) in self._seen:
            return
        self._seen[id(part)] = part
        # A layer whose first call, which builds it, may come: what Keras notes of that is left alone.
        unbuilt = not getattr(part, "built", True)
        names = {} if unbuilt and not _is_of_script(type(part)) else dict(vars(part))
        if unbuilt:  # None may stand for weights to come
            names = {k: v for k, v in names.items() if k != "built" and k[:1] != "_" and v is not None}
        label = str(getattr(part, "name", "") or type(part).__name__)
        self.keep_values(names, functools.partial(object.__setattr__, part), depth, vars(part), label)
        for kind in type(part).__mro__:
            if _is_of_script(kind) and id(kind) not in self._seen:
                self._seen[id(kind)] = kind
                own = {name: value for name, value in vars(kind).items() if not name.startswith("__")}
                self.keep_values(own, functools.partial(setattr, kind), depth, vars(kind), kind.__name__)

    def keep_values(
        self,
        names: Mapping[str, Any],
        assign: Callable[[str, Any], None],
        depth: int = _DEPTH,
        now: Mapping[str, Any] | None = None,
        label: str = "the script",
    ) -> None:
        """Keeps the values of names.

        Args:
            names: the names and their values.
            assign: gives a name its value.
            depth: how many containers and objects inside of each other are looked into.
            now: the namespace itself, where ``names`` is a part of it.
            label: the holder's name, for a person.
        """
        values = {name: value for name, value in names.items() if isinstance(value, _VALUES) or _is_tensor(value)}
        current = names if now is None else now
        for name, value in names.items():
            self._watch(f"{label}.{name}", value, functools.partial(current.get, name))

        def undo() -> None:
            for name, value in values.items():
                if name in current and current[name] is not value and not _holds_layers(current[name]):
                    assign(name, value)

        self._undo.append(undo)
        for name, value in list(names.items()):
            if isinstance(value, Iterator) and type(value).__module__ in _LENT:
                self._lend(name, value, assign)
            else:
                self.keep(value, depth)

    def _lend(self, name: str, iterator: Any, assign: Callable[[str, Any], None]) -> None:
        """Gives the name a copy of an iterator, which may be drawn from, until everything is put back."""
        if type(iterator).__name__ in _WITH_COPIES:
            assign(name, copy.copy(iterator))
            self._undo.append(lambda: assign(name, iterator))
            return
        # A generator has no copy, and one of `chain`, `map` or `zip` draws from the same iterators as they do.
        lent = _Remembering(iterator)
        assign(name, lent)
        self._undo.append(lambda: assign(name, lent.from_the_start()))

    def keep(self, value: Any, depth: int = _DEPTH) -> None:
        """Keeps what an object holds, in so many containers and objects inside of each other."""
        with contextlib.suppress(Exception):  # an object of an odd kind is left alone
            self._keep_object(value, depth)

    def _keep_object(self, value: Any, depth: int) -> None:
        if not depth or isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        if _is_tensor(value) and not self._has_room(value):
            return
        if undo := _as_it_is(value):
            self._seen[id(value)] = value
            self._undo.append(undo)
            return
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            self._keep_state_dict(value)
            return
        if isinstance(value, functools.partial):
            names = {
                "the function": value.func,
                **{f"argument {k}": v for k, v in enumerate(value.args)},
                **value.keywords,
            }
            self.keep_values(names, lambda name, value: None, depth, label="a partial function")
        elif isinstance(value, tuple):
            for child in value:
                self.keep(child, depth - 1)
        elif isinstance(value, np.ndarray) and not self._has_room(value):
            return
        elif isinstance(value, tuple(_RESTORE)):
            if isinstance(value, np.ndarray) or len(value) <= _LARGEST_COPIED:
                self._seen[id(value)] = value
                self._keep_container(value, depth)
            elif isinstance(value, list):
                self._undo.append(functools.partial(list.__delitem__, value, slice(len(value), None)))
        elif isinstance(value, types.FunctionType):
            if _is_of_script(value):
                self._seen[id(value)] = value
                self._keep_function(value, depth)
        elif (_is_of_script(type(value)) or isinstance(value, _NAMESPACES)) and hasattr(value, "__dict__"):
            self.keep_attributes(value, depth - 1)

    def _keep_state_dict(self, value: Any) -> None:
        """Keeps an optimizer of torch, a schedule, a `GradScaler`, or a module that is no part of the model.

        The numbers among its state are watched: they may depend on the rows, as what a schedule has seen of losses.
        """
        tensors = _tensors_of(value)
        if (tensors or hasattr(value, "forward")) and all(id(tensor) in self._of_model for tensor in tensors):
            return
        if not all(map(self._has_room, tensors)):
            return
        self._seen[id(value)] = value
        self._undo.append(functools.partial(value.load_state_dict, copy.deepcopy(value.state_dict())))
        name = type(value).__name__
        self._watch(
            f"the state of {name}", _plain_numbers(value.state_dict()), lambda: _plain_numbers(value.state_dict())
        )

    def _keep_function(self, function: types.FunctionType, depth: int) -> None:
        for cell in function.__closure__ or ():
            self._keep_cell(cell, depth - 1)
        for default in [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]:
            self.keep(default, depth - 1)
        if vars(function):
            own = vars(function)
            self.keep_values(dict(own), own.__setitem__, depth - 1, own, function.__name__)

    def _has_room(self, value: Any) -> bool:
        """Returns whether an array or tensor may be copied, and counts it."""
        size = bytes_of(value)
        if size > self._room:
            return False
        self._room -= size
        return True

    def _keep_container(self, container: Any, depth: int) -> None:
        restore = next(function for kind, function in _RESTORE.items() if isinstance(container, kind))
        if isinstance(container, np.ndarray):
            if not container.flags.writeable:
                return
            before = container.copy()
        else:
            before = _plain_copy(container)
            if len(before) <= _LARGEST:
                for child in before.values() if isinstance(before, dict) else before:
                    self.keep(child, depth - 1)

        def undo() -> None:
            if not _is_equal(container, before) and not _holds_layers(container):
                restore(container, before)

        self._undo.append(undo)

    def _keep_cell(self, cell: types.CellType, depth: int) -> None:
        with contextlib.suppress(ValueError):  # an empty cell
            value = cell.cell_contents
            if isinstance(value, _PLAIN):
                self._undo.append(lambda: setattr(cell, "cell_contents", value))
            else:
                self.keep(value, depth)


class _Remembering:
    """A generator in a trial, which remembers the values that are drawn from it."""

    def __init__(self, generator: Iterator[Any]) -> None:
        self._generator, self._drawn = generator, []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._drawn.append(next(self._generator))
        return self._drawn[-1]

    def __len__(self) -> int:
        return len(self._generator)  # type: ignore[arg-type] - of a loader's iterator

    def from_the_start(self) -> Iterator[Any]:
        """Returns the generator itself where nothing was drawn from it, else an iterator over the values drawn and those to come."""
        return itertools.chain(self._drawn, self._generator) if self._drawn else self._generator


def _as_it_is(value: Any) -> Callable[[], Any] | None:
    """Returns a function that puts an object back into the state that it has now; None for objects without a state of a known kind."""
    if isinstance(value, random.Random):
        return functools.partial(value.setstate, value.getstate())
    if isinstance(value, np.random.RandomState):
        return functools.partial(value.set_state, value.get_state())
    if type(value).__module__.startswith("torch") and type(value).__name__ == "Generator":
        return functools.partial(value.set_state, value.get_state())
    if isinstance(value, np.random.Generator):
        return functools.partial(setattr, value.bit_generator, "state", copy.deepcopy(value.bit_generator.state))
    if _is_tensor(value) and hasattr(value, "detach"):
        return _tensor_as_it_is(value)
    return None


def _tensors_of(module: Any) -> list[Any]:
    """Returns the parameters and buffers of a module of torch; none of anything else."""
    if not (hasattr(module, "parameters") and hasattr(module, "buffers")):
        return []
    return [*module.parameters(), *module.buffers()]


def _plain_numbers(state: Any) -> list[float]:
    """Returns Python's numbers in dictionaries and lists inside of each other, in order."""
    if isinstance(state, dict):
        return [number for value in state.values() for number in _plain_numbers(value)]
    if isinstance(state, list | tuple):
        return [number for value in state for number in _plain_numbers(value)]
    return [float(state)] if isinstance(state, int | float) else []


def _tensor_as_it_is(tensor: Any) -> Callable[[], None]:
    before, gradient = tensor.detach().clone(), tensor.grad if tensor.is_leaf else None
    held = None if gradient is None else gradient.detach().clone()

    def undo() -> None:
        tensor.detach().copy_(before)
        if tensor.is_leaf:
            tensor.grad = gradient
            if gradient is not None:
                gradient.detach().copy_(held)

    return undo


# Parameters that a script has outside of its model, of a loss with an optimizer of its own, e.g., are changed by steps too.
_TENSORS = frozenset({("torch", "Tensor"), ("torch", "Parameter"), ("tensorflow", "EagerTensor")})


def _is_tensor(value: Any) -> bool:
    """Returns whether a value is a tensor or a parameter of torch, or an eager tensor of TensorFlow, and no variable."""
    return (type(value).__module__.partition(".")[0], type(value).__name__) in _TENSORS


def numbers_of(value: Any) -> npt.NDArray[np.float64] | None:
    """Returns a number, or the numbers of a tensor, an array, a list or a dictionary, as float64; None of what holds none, or is too odd or large."""
    with contextlib.suppress(Exception):
        return _as_numbers(value)
    return None


def _read_numbers(read: Callable[[], Any]) -> _Numbers:
    with contextlib.suppress(Exception):  # a variable of a function that holds nothing any more
        return numbers_of(read())
    return None


def _as_numbers(value: Any) -> npt.NDArray[np.float64] | None:
    if isinstance(value, dict):
        if len(value) > _LARGEST:
            return None
        parts = [found.ravel() for found in map(numbers_of, value.values()) if found is not None]
        return np.concatenate(parts) if parts else None
    if _is_tensor(value) and _size_of(value) > _LARGEST * 100:
        return None
    if isinstance(value, list | tuple | collections.deque):
        if len(value) > _LARGEST or sum(map(_size_of, value)) > _LARGEST * 100:
            return None
        if all(isinstance(one, int | float | np.generic) for one in value):
            return np.asarray([float(one) for one in value], np.float64)
        parts = [numbers_of(one) for one in value]
        found = [part.ravel() for part in parts if part is not None]
        return np.concatenate(found) if len(found) == len(parts) else None
    if _is_tensor(value):
        value = value.detach().cpu().double().numpy() if hasattr(value, "detach") else value.numpy()
    if isinstance(value, int | float | np.generic | np.ndarray):
        found = np.asarray(value)
        return found.astype(np.float64) if found.dtype.kind in "fiub" and found.size <= _LARGEST * 100 else None
    return None


def _size_of(value: Any) -> int:
    return int(np.prod(getattr(value, "shape", ())))


def bytes_of(value: Any) -> int:
    """Returns the bytes of an array or tensor."""
    return _size_of(value) * int(getattr(value.dtype, "itemsize", None) or value.dtype.size)


@functools.lru_cache(maxsize=4096)
def _is_script_module(name: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return name == "__main__" or bool(file and not file.startswith(_OF_PYTHON))


def _is_of_script_by_name(name: str) -> bool:
    return name.partition(".")[0] not in ("syrtos", "builtins") and _is_script_module(name)


def _modules_of_script() -> list[types.ModuleType]:
    """Returns the script and the modules in its folder, or in folders of that, each once."""
    script = sys.modules["__main__"]
    folder = os.path.dirname(os.path.abspath(getattr(script, "__file__", None) or "."))
    found = [script]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if os.path.abspath(file).startswith(folder + os.sep) and _is_of_script_by_name(name) and module not in found:
            found.append(module)
    return found


def _is_of_script(kind: Any) -> bool:
    """Returns whether a class or function stands in the script or in a module beside it, and not in an installed package."""
    return _is_of_script_by_name(str(getattr(kind, "__module__", None) or ""))


def _plain_copy(container: Any) -> Any:
    """Returns a copy without the tracking that Keras's own lists and dictionaries have."""
    kind = next(kind for kind in _RESTORE if isinstance(container, kind))
    return kind(container)


def _is_equal(container: Any, before: Any) -> bool:
    """Returns whether a container has the same elements as before; arrays among them are compared by identity."""
    if isinstance(container, np.ndarray | set | bytearray):
        return bool(np.array_equal(container, before)) if isinstance(container, np.ndarray) else container == before
    if len(container) != len(before):
        return False
    if isinstance(container, dict):
        return all(name in before and before[name] is value for name, value in container.items())
    return all(one is other for one, other in zip(container, before, strict=True))


def _holds_layers(container: Any) -> bool:
    """Returns whether a container holds layers, metrics, optimizers or variables.

    It keeps those that a step has made.
    """
    if not isinstance(container, dict | list | tuple | set | collections.deque):
        return False
    values: Iterable[Any] = container.values() if isinstance(container, dict) else container
    return any(hasattr(value, "variables") or hasattr(value, "assign") for value in values)


def _restore_list(container: Any, before: list[Any]) -> None:
    # Keras 2 wraps a model's lists: what they hold stands in `_storage`.
    list.__setitem__(getattr(container, "_storage", container), slice(None), before)


def _restore_dict(container: Any, before: dict[Any, Any]) -> None:
    inner = getattr(container, "__wrapped__", container)  # of Keras 2's `_DictWrapper`
    if isinstance(inner, collections.OrderedDict):  # which has an order of its own
        inner.clear()
        inner.update(before)
        return
    dict.clear(inner)
    dict.update(inner, before)


def _restore_set(container: set[Any], before: set[Any]) -> None:
    set.clear(container)
    set.update(container, before)


def _restore_deque(container: collections.deque[Any], before: Iterable[Any]) -> None:
    container.clear()
    container.extend(before)


def _restore_bytes(container: bytearray, before: bytes) -> None:
    container[:] = before


def _restore_array(container: Any, before: Any) -> None:
    container[...] = before


_RESTORE: dict[type, Callable[[Any, Any], None]] = {
    list: _restore_list,
    dict: _restore_dict,
    set: _restore_set,
    collections.deque: _restore_deque,
    bytearray: _restore_bytes,
    np.ndarray: _restore_array,
}
