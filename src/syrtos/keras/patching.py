"""Tools that replace functions of Keras and of its frameworks."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from syrtos.errors import ConfigurationError

Method = Callable[..., Any]

# The versions with which the patches of this room were seen to work.
SEEN = {"keras": "3.13.2, 3.15.1 and 3.16.0.dev2026102704", "tf_keras": "2.18 to 2.21"}


_MODEL = "keras:Model"


@dataclasses.dataclass(frozen=True)
class Patch:
    """A function of Keras that is replaced.

    Attributes:
        owner: where it is: ``module`` or ``module:Class``; or several of these, with ``|`` between
            them, of which a version of Keras has one.
        name: of the function in it.
        wrapper: makes the replacement of the original, a function or a module.
        why: the reason.
        everywhere: whether it is replaced also where other modules have imported the function by
            name.
    """

    owner: str
    name: str
    wrapper: Callable[[Any], object]
    why: str
    everywhere: bool = False

    def find_owner(self) -> object:
        """Returns the owner; None where this version of Keras lacks it, or the function in it."""
        for place in self.owner.split("|"):
            module, _, kind = place.partition(":")
            try:
                owner = importlib.import_module(module)
            except ImportError:
                continue
            owner = getattr(owner, kind, None) if kind else owner
            if hasattr(owner, self.name):
                return self._trainer_of(owner) if place == _MODEL else owner
        return None

    def _trainer_of(self, model: Any) -> object:
        """Returns the class of Keras that a model has the function from.

        That may be the backend's trainer, which a script can give to a layer too.
        """
        of_keras = (base for base in model.__mro__ if base.__module__.startswith("keras."))
        return next((base for base in of_keras if self.name in vars(base)), model)


def lacking(missing: Sequence[str]) -> ConfigurationError:
    """Returns the error that names what the installed version of a package, Keras 3 or 2, lacks."""
    package = missing[0].partition(".")[0]
    return ConfigurationError(
        f"{package} {getattr(sys.modules.get(package), '__version__', '')} lacks what syrtos changes"
        f" in it to train on several workers: {', '.join(missing)}. syrtos was seen to work with"
        f" {package} {SEEN[package]}: install one of these."
    )


def install(patches: Sequence[Patch]) -> None:
    """Replaces all that the patches name, if all of it is found.

    Raises:
        ConfigurationError: this version of Keras lacks some of it.
    """
    found = [(patch, patch.find_owner()) for patch in patches]
    missing = [
        f"{patch.owner.replace(':', '.').replace('|', ' or ')}.{patch.name}"
        for patch, owner in found
        if owner is None
    ]
    if missing:
        raise lacking(missing)
    # Only now: where something is missing, Keras is left as it was.
    for patch, owner in found:
        (replace_everywhere if patch.everywhere else replace)(owner, patch.name, patch.wrapper)


def replace(owner: object, name: str, wrapper: Callable[[Method], object]) -> None:
    """Replaces ``owner.name`` by ``wrapper(original)``."""
    original = getattr(owner, name)
    replacement: Any = wrapper(
        original
    )  # a function, or what stands for a module that is no function
    setattr(
        owner, name, functools.wraps(original)(replacement) if callable(original) else replacement
    )


def by_all(*wrappers: Callable[[Method], Method]) -> Callable[[Method], Method]:
    """Returns a wrapper of a function by several, the first of them innermost."""

    def wrap(original: Method) -> Method:
        for wrapper in wrappers:
            original = functools.wraps(original)(wrapper(original))
        return original

    return wrap


def replace_everywhere(
    owner: object, name: str, wrapper: Callable[[Method], object], public: str | None = None
) -> None:
    """Replaces a function also where other modules imported it, by its own or ``public`` name."""
    original = getattr(owner, name)
    replace(owner, name, wrapper)
    for module in list(sys.modules.values()):
        for known in {name, public or name}:
            # A module that may not be imported is None in `sys.modules`.
            if getattr(module, "__dict__", {}).get(known) is original:
                setattr(module, known, getattr(owner, name))
