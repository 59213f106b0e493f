"""The state in Python that a step changes beside its variables.

It is in numbers, lists and dictionaries of a model, of its parts and of the script, and in
generators of random numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import io
import itertools
import random
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from syrtos.keras import keras_internals
from syrtos.keras.split import containers, held_numbers, made_attributes, tensors
from syrtos.keras.split.script_modules import is_of_script, modules_of_script

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model

ElementT = TypeVar("ElementT")
NameT = TypeVar("NameT")

# What a step may give a name anew: `self.scores = self.scores + [score]` makes another list.
_VALUES = (*containers.PLAIN, *containers.KINDS, tuple)
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
# Containers with more elements are data of the script, which is not copied; see
# `held_numbers.LARGEST` too.
_LARGEST_COPIED = 200_000
# Bytes of arrays and tensors that are copied at most; what is larger, or comes later, is taken for
# data too.
_ROOM = 128 << 20
# Containers and objects inside of each other that are looked into.
_DEPTH = 4
# Iterators whose copies draw from nothing that they draw from.
_WITH_COPIES = (
    "list_iterator",
    "tuple_iterator",
    "range_iterator",
    "longrange_iterator",
    "count",
    "repeat",
)
# Iterators of libraries that are lent too, by their modules: what was drawn is handed out again.
_LENT = ("builtins", "itertools", "torch.utils.data.dataloader")


@contextlib.contextmanager
def keeping_python_state(
    model: Model,
    generators: Collection[str] = ("numpy", "random"),
    hooks: Iterable[Callable[..., object]] = (),
) -> Iterator[list[Change]]:
    """Context manager: restores, at its end, what Python code of the script has changed.

    This is numbers, texts, containers, tensors, random generators, and what has a `state_dict`
    (optimizers of torch and their schedules, modules that are no part of the model). A model, its
    parts and the globals of the script and of the modules beside it hold these, also in namespaces,
    in objects of the script's own classes, in these classes, and in closures and arguments of
    functions. Of iterators of Python and of torch's `DataLoader` a copy is lent. What only a
    library knows is not restored. Attributes that were made on a built model meanwhile are removed.
    What is printed meanwhile is not shown.

    Args:
        model: the one whose step runs inside.
        generators: those of the global generators, of NumPy and of Python, that are restored too.
        hooks: functions of the script that a framework calls.

    Yields:
        A list that gets the numbers that were changed, when they are restored.
    """
    changes: list[Change] = []
    names_before, was_built = set(vars(model)), bool(getattr(model, "built", False))
    kept = _KeptValues(model)
    layers = keras_internals.layers_of(model)
    kept.removes_new = was_built and all(getattr(layer, "built", True) for layer in layers)
    for part in [
        model,
        *layers,
        *model.metrics,
        *keras_internals.compiled_parts(model),
    ]:
        kept.keep_attributes(part)
    # Threads that read data may change what modules hold.
    kept.removes_new = False
    for module in modules_of_script():
        names = vars(module)
        kept.keep_values(dict(names), names.__setitem__, now=names)
    for hook in hooks:
        kept.keep(hook)
    drawn = np.random.get_state(), random.getstate()
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # one process prints once in a step
            yield changes
    finally:
        changes += kept.changes()  # while the values are those that the step has left
        made = [name for name in vars(model) if name not in names_before]
        removed = made_attributes.made_by_step(model, made, was_built)
        for name in removed:
            if change := _change_of(
                f"{model.name}.{name}", None, held_numbers.numbers_of(vars(model)[name])
            ):
                changes.append(change)
            delattr(model, name)  # e.g. an optimizer that a step makes when it has none
        kept.restore()
        if "numpy" in generators:
            np.random.set_state(drawn[0])
        if "random" in generators:
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


def _change_of(
    name: str, before: held_numbers.Numbers, after: held_numbers.Numbers
) -> Change | None:
    """Returns the change of numbers, which may be absent before or after; None without a change."""
    if before is None:  # numbers that were not there count as zero
        return None if after is None else Change(name, np.zeros_like(after), after)
    if after is not None and np.array_equal(before, after, equal_nan=True):
        return None
    return Change(name, before, np.full(1, np.nan) if after is None else after)


class _KeptValues:
    """Values that Python code changes without a trace elsewhere, and how to put them back."""

    def __init__(self, model: object) -> None:
        """``model``: its parameters and buffers are kept by themselves."""
        self._model = model
        # Whether attributes that parts get are removed: what they get while they are built stays.
        self.removes_new = False
        self._of_model = {id(tensor) for tensor in tensors.tensors_of(model)}
        self._numbers: list[tuple[str, held_numbers.Numbers, Callable[[], object]]] = []
        # The objects too: an identity is that of another object once its own is gone.
        self._seen: dict[int, object] = {}
        self._undo: list[Callable[[], object]] = []
        self._room = _ROOM

    def restore(self) -> None:
        """Puts everything back."""
        for undo in self._undo:
            with contextlib.suppress(Exception):  # an object that can't be put back stays as it is
                undo()

    def changes(self) -> list[Change]:
        """Returns the numbers that differ from before, in the order in which they were found."""
        now = (
            (name, before, held_numbers.read_numbers(read)) for name, before, read in self._numbers
        )
        return [change for each in now if (change := _change_of(*each))]

    def _watch(self, name: str, value: object, read: Callable[[], object]) -> None:
        """Notes numbers, or that there are none yet; ``read`` gives them again later."""
        before = held_numbers.numbers_of(value)
        # An empty dictionary may get numbers too.
        if before is not None or value is None or (isinstance(value, dict) and not value):
            self._numbers.append((name, before, read))

    def keep_attributes(self, part: object, depth: int = _DEPTH) -> None:
        """Keeps the attributes of an object, and those of its class where that is the script's."""
        if id(part) in self._seen:
            return
        self._seen[id(part)] = part
        # A layer whose first call, which builds it, may come: what Keras notes of that is left
        # alone.
        unbuilt = not getattr(part, "built", True)
        names = {} if unbuilt and not is_of_script(type(part)) else dict(vars(part))
        if unbuilt:  # None may stand for weights to come
            names = {
                k: v for k, v in names.items() if k != "built" and k[:1] != "_" and v is not None
            }
        if self.removes_new and part is not self._model and is_of_script(type(part)):
            self._undo.append(functools.partial(made_attributes.remove_new, part, set(vars(part))))
        label = str(getattr(part, "name", "") or type(part).__name__)
        # What Keras itself notes under private names, such as a metric's last result, is put back
        # and not compared.
        noted = keras_internals.ADDED_LOSSES
        compared = [
            name
            for name in names
            if name not in noted and (name[:1] != "_" or is_of_script(type(part)))
        ]
        # Not the object's own method: Keras's layers track what they are given by it.
        self.keep_values(
            names, functools.partial(object.__setattr__, part), depth, vars(part), label, compared
        )
        for kind in type(part).__mro__:
            if is_of_script(kind) and id(kind) not in self._seen:
                self._seen[id(kind)] = kind
                own = {
                    name: value for name, value in vars(kind).items() if not name.startswith("__")
                }
                self.keep_values(
                    own, functools.partial(setattr, kind), depth, vars(kind), kind.__name__
                )

    def keep_values(
        self,
        names: Mapping[str, object],
        assign: Callable[[str, object], None],
        depth: int = _DEPTH,
        now: Mapping[str, object] | None = None,
        label: str = "the script",
        compared: Collection[str] | None = None,
    ) -> None:
        """Keeps the values of names.

        Args:
            names: the names and their values.
            assign: gives a name its value.
            depth: how many containers and objects inside of each other are looked into.
            now: the namespace itself, where ``names`` is a part of it.
            label: the holder's name, for a person.
            compared: those of the names whose numbers are compared; None: all.
        """
        values = {
            name: value
            for name, value in names.items()
            if isinstance(value, _VALUES) or tensors.is_tensor(value)
        }
        current = names if now is None else now
        for name in names if compared is None else compared:
            value = names[name]
            self._watch(f"{label}.{name}", value, functools.partial(current.get, name))

        def undo() -> None:
            for name, value in values.items():
                if (
                    name in current
                    and current[name] is not value
                    and not containers.holds_layers(current[name])
                ):
                    assign(name, value)

        self._undo.append(undo)
        for name, value in list(names.items()):
            self._keep_or_lend(name, value, assign, depth)

    def _keep_or_lend(
        self, name: NameT, value: object, assign: Callable[[NameT, object], None], depth: int
    ) -> None:
        """Keeps what a name, or a place in a container, holds; an iterator is lent."""
        if isinstance(value, Iterator) and type(value).__module__ in _LENT:
            self._lend(name, value, assign)
        else:
            self.keep(value, depth)

    def _lend(
        self, name: NameT, iterator: Iterator[object], assign: Callable[[NameT, object], None]
    ) -> None:
        """Gives the name a copy of an iterator, to draw from until everything is put back."""
        if type(iterator).__name__ in _WITH_COPIES:
            assign(name, copy.copy(iterator))
            self._undo.append(lambda: assign(name, iterator))
            return
        # A generator has no copy, and one of `chain`, `map` or `zip` draws from the same iterators
        # as they do.
        lent = _Remembering(iterator)
        assign(name, lent)
        self._undo.append(lambda: assign(name, lent.from_the_start()))

    def keep(self, value: object, depth: int = _DEPTH) -> None:
        """Keeps what an object holds, in so many containers and objects inside of each other."""
        with contextlib.suppress(Exception):  # an object of an odd kind is left alone
            self._keep_object(value, depth)

    def _keep_object(self, value: object, depth: int) -> None:
        # The first kind that fits decides: generators, tensors and modules are put back as a whole.
        if not depth or isinstance(value, containers.PLAIN) or id(value) in self._seen:
            return
        if tensors.is_tensor(value) and not self._has_room(value):
            return
        if undo := tensors.restorer_of(value):
            self._seen[id(value)] = value
            self._undo.append(undo)
            return
        if tensors.has_state_dict(value):
            self._keep_state_dict(value)
            return
        if isinstance(value, functools.partial):
            names = {
                "the function": value.func,
                **{f"argument {k}": v for k, v in enumerate(value.args)},
                **value.keywords,
            }
            # What a partial function holds is never another object, so there is nothing to assign.
            self.keep_values(names, lambda name, value: None, depth, label="a partial function")
        elif isinstance(value, tuple):
            for child in value:
                self.keep(child, depth - 1)
        elif isinstance(value, np.ndarray) and not self._has_room(value):
            return
        elif isinstance(value, containers.KINDS):
            if isinstance(value, np.ndarray) or len(value) <= _LARGEST_COPIED:
                self._seen[id(value)] = value
                self._keep_container(value, depth)
            elif isinstance(value, list):
                # No copy, but what a step has appended is cut off.
                self._undo.append(
                    functools.partial(list.__delitem__, value, slice(len(value), None))
                )
        elif isinstance(value, types.FunctionType):
            if is_of_script(value):
                self._seen[id(value)] = value
                self._keep_function(value, depth)
        elif (is_of_script(type(value)) or isinstance(value, _NAMESPACES)) and hasattr(
            value, "__dict__"
        ):
            self.keep_attributes(value, depth - 1)

    def _keep_state_dict(self, value: tensors.HoldsState) -> None:
        """Keeps a torch optimizer, a schedule, a `GradScaler`, or a module outside the model."""
        own = tensors.tensors_of(value)
        # The model itself, and parts of it, whose tensors are kept by themselves.
        if (own or hasattr(value, "forward")) and all(
            id(tensor) in self._of_model for tensor in own
        ):
            return
        if not all(map(self._has_room, own)):
            return
        self._seen[id(value)] = value
        self._undo.append(
            functools.partial(value.load_state_dict, copy.deepcopy(value.state_dict()))
        )
        # They may depend on the rows, as what a schedule has seen of losses.
        name, numbers = (
            f"the state of {type(value).__name__}",
            held_numbers.plain_numbers(value.state_dict()),
        )
        self._watch(name, numbers, lambda: held_numbers.plain_numbers(value.state_dict()))
        # A schedule may be all that holds an optimizer.
        held = getattr(value, "optimizer", None)
        if id(held) not in self._seen and tensors.has_state_dict(held):
            self._keep_state_dict(held)

    def _keep_function(self, function: types.FunctionType, depth: int) -> None:
        label = function.__name__

        def assign_default(name: str, value: object) -> None:
            function.__defaults__ = tuple({**_defaults_of(function), name: value}.values())

        for read, assign in (
            (
                functools.partial(_variables_around, function),
                functools.partial(_assign_around, function),
            ),
            (functools.partial(_defaults_of, function), assign_default),
        ):
            self.keep_values(read(), assign, depth - 1, _ReturnedValues(read), label)
        by_keyword, own = function.__kwdefaults__ or {}, vars(function)
        self.keep_values(dict(by_keyword), by_keyword.__setitem__, depth - 1, by_keyword, label)
        names_before = set(own)
        self.keep_values(dict(own), own.__setitem__, depth - 1, own, label)

        def read_made() -> object:
            return [value for name, value in own.items() if name not in names_before] or None

        self._numbers.append((f"{label}'s attributes", None, read_made))
        self._undo.append(lambda: [own.pop(name) for name in set(own) - names_before])

    def _has_room(self, value: tensors.Tensor) -> bool:
        """Returns whether an array or tensor may be copied, and counts it."""
        size = tensors.bytes_of(value)
        if size > self._room:
            return False
        self._room -= size
        return True

    def _keep_container(self, container: containers.Container, depth: int) -> None:
        if isinstance(container, np.ndarray):
            if not container.flags.writeable:  # nobody can change it, and it could not be put back
                return
            before = container.copy()
        else:
            before = containers.plain_copy(container)

        def undo() -> None:
            # Layers that a step has made in its first call stay: their variables are the model's
            # from now on.
            if not containers.is_equal(container, before) and not containers.holds_layers(
                container
            ):
                containers.restore(container, before)

        # Before that of an iterator inside, which puts back one with what was drawn.
        self._undo.append(undo)
        if isinstance(before, np.ndarray | bytearray) or len(before) > held_numbers.LARGEST:
            return
        if isinstance(before, dict | list) and isinstance(container, dict | list):
            set_item = cast("Callable[[object, object], None]", container.__setitem__)
            for place, child in before.items() if isinstance(before, dict) else enumerate(before):
                self._keep_or_lend(place, child, set_item, depth - 1)
        else:
            for child in before:
                self.keep(child, depth - 1)


def _variables_around(function: types.FunctionType) -> dict[str, object]:
    """Returns the variables of the functions around a function, except those with no value yet."""
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            found[name] = cell.cell_contents
    return found


def _assign_around(function: types.FunctionType, name: str, value: object) -> None:
    """Gives a variable of the functions around a function its value."""
    cells = function.__closure__ or ()
    cells[function.__code__.co_freevars.index(name)].cell_contents = value


def _defaults_of(function: types.FunctionType) -> dict[str, object]:
    """Returns the default values of a function's arguments, by place."""
    return {f"default {place}": value for place, value in enumerate(function.__defaults__ or ())}


class _ReturnedValues(Mapping[str, object]):
    """The names and values that a function returns at the moment."""

    def __init__(self, read: Callable[[], Mapping[str, object]]) -> None:
        self._read = read

    def __getitem__(self, name: str) -> object:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


class _Remembering(Generic[ElementT]):
    """A generator in a trial, which remembers the values that are drawn from it."""

    def __init__(self, generator: Iterator[ElementT]) -> None:
        self._generator = generator
        self._drawn: list[ElementT] = []

    def __iter__(self) -> Iterator[ElementT]:
        return self

    def __next__(self) -> ElementT:
        self._drawn.append(next(self._generator))
        return self._drawn[-1]

    def __len__(self) -> int:
        return len(
            cast("Sized", self._generator)
        )  # the iterator of a `DataLoader` has a length, unlike generators

    def from_the_start(self) -> Iterator[ElementT]:
        """Returns an iterator over the values drawn and those to come.

        It is the generator itself where no value was drawn.
        """
        return itertools.chain(self._drawn, self._generator) if self._drawn else self._generator
