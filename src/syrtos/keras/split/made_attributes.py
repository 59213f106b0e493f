"""The attributes that a step of the script's has made on a model and its parts.

They are removed after a trial, so that the first step that counts makes them again.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Collection, Iterable

from syrtos.keras.split import containers
from syrtos.keras.split.script_modules import is_of_script

# The methods of a model that Keras calls for each batch.
_STEPS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")


def made_by_step(model: object, made: Iterable[str], was_built: bool) -> list[str]:
    """Returns those of the attributes that a model got in a step which the script has made.

    Args:
        model: the model.
        made: the names of its new attributes.
        was_built: whether it had its layers before.
    """
    if was_built:
        return [name for name in made if name[0] != "_" or _is_of_script(model, name)]
    # A value of the class's own comes to light again; what else the first call has made, such as
    # layers, stays. So does what a step has made beside layers, which may depend on it.
    made = list(made)
    of_steps = _names_set_by_steps(type(model)).intersection(made)
    if not all(_is_plain(vars(model)[name]) for name in of_steps):
        of_steps = set()
    return [name for name in made if name in of_steps or _is_default_of(type(model), name)]


def remove_new(part: object, before: Collection[str]) -> None:
    """Removes the attributes that an object of the script's class got since, but its layers."""
    made = [name for name in vars(part) if name not in before]
    for name in filter(functools.partial(_is_of_script, part), made):
        object.__delattr__(part, name)


def _is_plain(value: object) -> bool:
    return not (containers.is_layer(value) or containers.holds_layers(value))


def _is_of_script(part: object, name: str) -> bool:
    """Returns whether the script has given a part of a model an attribute, under whatever name.

    A first step often makes what later ones use, such as an optimizer of torch under ``_optimizer``.
    Keras keeps functions and caches of its own under private names, of which its code speaks.
    """
    value = vars(part)[name]
    return (
        _is_plain(value)
        and not callable(value)
        and not name.startswith("_syrtos")
        and name not in _names_of_libraries(type(part))
    )


@functools.cache
def _names_of_libraries(kind: type) -> frozenset[str]:
    """Returns the names in the code of the classes, not the script's, that a class is made of."""
    values = [
        value for base in kind.__mro__ if not is_of_script(base) for value in vars(base).values()
    ]
    functions = [
        getattr(value, "fget", None) or getattr(value, "fset", None) or value for value in values
    ]
    found: set[str] = set()
    codes = [getattr(inspect.unwrap(f), "__code__", None) for f in functions if callable(f)]
    while codes:
        code = codes.pop()
        if isinstance(code, types.CodeType):
            found.update(code.co_names)
            codes += code.co_consts
    return frozenset(found)


def _names_set_by_steps(kind: type) -> set[str]:
    """Returns the attributes that the steps of a script's class set, as their code shows."""
    methods = [
        vars(base).get(name) for base in kind.__mro__ if is_of_script(base) for name in _STEPS
    ]
    codes = [method.__code__ for method in methods if isinstance(method, types.FunctionType)]
    return {
        instruction.argval
        for code in codes
        for instruction in dis.get_instructions(code)
        if instruction.opname == "STORE_ATTR"
    }


def _is_default_of(kind: type, name: str) -> bool:
    """Returns whether a class of the script has a plain value under a name.

    An object's own attribute of that name hides the value.
    """
    return any(
        is_of_script(base) and isinstance(vars(base).get(name, base), containers.PLAIN)
        for base in kind.__mro__
    )
