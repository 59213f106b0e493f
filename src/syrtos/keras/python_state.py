"""The state in Python that a step changes beside its variables.

It is in numbers, lists and dictionaries of a model, of its parts and of the script, and in generators of random
numbers.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import io
import itertools
import random
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from syrtos.keras import keras_internals

_PLAIN = (int, float, str, bytes, type(None), np.generic)
# Containers with more elements than these are data of the script, which a step reads.
_LARGEST = 10_000
_DEPTH = 4
_OF_PYTHON = tuple(sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib"))


@contextlib.contextmanager
def keeping_python_state(model: Any, generators: bool = True) -> Iterator[None]:
    """Context manager: restores, at its end, what Python code of the script has changed.

    That is numbers, texts, containers and random generators which a model, its parts and the script's globals hold, also in objects of
    the script's own classes, in these classes and in closures. Of iterators a copy is lent. What only a library knows is not
    restored. Attributes that were made on a
    built model meanwhile are removed. What is printed meanwhile is not shown.

    Args:
        model: the one whose step runs inside.
        generators: whether the global generators of NumPy and Python are restored too.
    """
    known = set(vars(model)) if getattr(model, "built", False) else None
    kept = _Kept()
    for part in [model, *keras_internals.layers_of(model), *model.metrics]:
        kept.keep_attributes(part)
    kept.keep_values(script := vars(sys.modules["__main__"]), script.__setitem__)
    drawn = np.random.get_state(), random.getstate()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        made = [name for name in vars(model) if known is not None and name not in known and not name.startswith("_")]
        for name in made:
            delattr(model, name)  # e.g. an optimizer that a step makes when it has none
        kept.restore()
        if generators:
            np.random.set_state(drawn[0])
            random.setstate(drawn[1])


class _Kept:
    """Values that Python code changes without a trace elsewhere, and how to put them back."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # the objects too: an identity is that of another object once its own is gone
        self._undo: list[Callable[[], None]] = []

    def restore(self) -> None:
        """Puts everything back."""
        for undo in self._undo:
            undo()

    def keep_attributes(self, part: Any, depth: int = _DEPTH) -> None:
        """Keeps the attributes of an object, and those of its class where that is the script's."""
        if id(part) in self._seen:
            return
        self._seen[id(part)] = part
        # A layer whose first call, which builds it, may come: what Keras notes of that is left alone.
        unbuilt = not getattr(part, "built", True)
        names = {
            name: value for name, value in vars(part).items() if not (unbuilt and (name == "built" or name[:1] == "_"))
        }
        self.keep_values(names, functools.partial(object.__setattr__, part), depth, vars(part))
        for kind in type(part).__mro__:
            if _is_of_script(kind) and id(kind) not in self._seen:
                self._seen[id(kind)] = kind
                own = {name: value for name, value in vars(kind).items() if not name.startswith("__")}
                self.keep_values(own, functools.partial(setattr, kind), depth, vars(kind))

    def keep_values(
        self,
        names: Mapping[str, Any],
        assign: Callable[[str, Any], None],
        depth: int = _DEPTH,
        now: Mapping[str, Any] | None = None,
    ) -> None:
        """Keeps the values of names.

        Args:
            names: the names and their values.
            assign: gives a name its value.
            depth: how many containers and objects inside of each other are looked into.
            now: the namespace itself, where ``names`` is a part of it.
        """
        plain = {name: value for name, value in names.items() if isinstance(value, _PLAIN)}
        current = names if now is None else now

        def undo() -> None:
            for name, value in plain.items():
                if name in current and current[name] is not value:
                    assign(name, value)

        self._undo.append(undo)
        for name, value in list(names.items()):
            if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
                self._lend(name, value, assign)
            else:
                self._keep(value, depth)

    def _lend(self, name: str, iterator: Any, assign: Callable[[str, Any], None]) -> None:
        """Gives the name a copy of an iterator, which may be drawn from, until everything is put back."""
        try:
            lent, kept = copy.copy(iterator), iterator
        except TypeError:  # a generator has no copy
            lent, kept = itertools.tee(iterator)
        assign(name, lent)
        self._undo.append(lambda: assign(name, kept))

    def _keep(self, value: Any, depth: int) -> None:
        if not depth or isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        if isinstance(value, tuple(_RESTORE)):
            if len(value) <= _LARGEST:
                self._seen[id(value)] = value
                self._keep_container(value, depth)
        elif isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
            self._seen[id(value)] = value
            self._undo.append(_generator_as_it_is(value))
        elif isinstance(value, types.FunctionType):
            if value.__closure__ and _is_of_script(value):
                self._seen[id(value)] = value
                for cell in value.__closure__:
                    self._keep_cell(cell, depth - 1)
        elif _is_of_script(type(value)) and hasattr(value, "__dict__"):
            self.keep_attributes(value, depth - 1)

    def _keep_container(self, container: Any, depth: int) -> None:
        restore = next(function for kind, function in _RESTORE.items() if isinstance(container, kind))
        if isinstance(container, np.ndarray):
            if not container.flags.writeable:
                return
            before = container.copy()
        else:
            before = _plain_copy(container)
            for child in before.values() if isinstance(before, dict) else before:
                self._keep(child, depth - 1)

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
                self._keep(value, depth)


def _generator_as_it_is(generator: Any) -> Callable[[], None]:
    """Returns a function that puts a random generator back into the state that it has now."""
    if isinstance(generator, random.Random):
        return functools.partial(generator.setstate, generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return functools.partial(generator.set_state, generator.get_state())
    state = copy.deepcopy(generator.bit_generator.state)
    return functools.partial(setattr, generator.bit_generator, "state", state)


@functools.lru_cache(maxsize=4096)
def _is_script_module(name: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return name == "__main__" or bool(file and not file.startswith(_OF_PYTHON))


def _is_of_script(kind: Any) -> bool:
    """Returns whether a class or function stands in the script or in a module beside it, and not in an installed package."""
    name = str(getattr(kind, "__module__", None) or "")
    return name.partition(".")[0] not in ("syrtos", "builtins") and _is_script_module(name)


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
    if isinstance(container, np.ndarray | bytearray):
        return False
    values: Iterable[Any] = container.values() if isinstance(container, dict) else container
    return any(hasattr(value, "variables") or hasattr(value, "assign") for value in values)


def _restore_list(container: list[Any], before: list[Any]) -> None:
    list.__setitem__(container, slice(None), before)


def _restore_dict(container: dict[Any, Any], before: dict[Any, Any]) -> None:
    dict.clear(container)
    dict.update(container, before)


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
