"""Puts off what `import tensorflow` and `import keras` import besides, until a script uses it.

Both import scikit-learn, JAX and TensorFlow Lite where these are installed: a third to a half of
the processor time of `import tensorflow`, in each process, for what few scripts use. Seen with
TensorFlow 2.21 and Keras 3.12 to 3.15. A name that a version does not have is never asked for.

This module imports nothing of syrtos, because the zygote loads it by its path.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Packages that hold nothing but names of a public API, so that executing them later changes nothing
# but the time.
_DEFERRED = frozenset((
    # scikit-learn, the base of `SKLearnClassifier`
    "keras.wrappers", "keras._tf_keras.keras.wrappers",
    # TensorFlow Lite, which imports JAX to convert its functions
    "tensorflow._api.v2.lite", "tensorflow._api.v2.compat.v1.lite", "tensorflow._api.v2.compat.v2.lite",
))  # fmt: skip
# It imports JAX to mend versions of it that are older than ours.
_WITHOUT_JAX = "keras.src.callbacks.orbax_checkpoint"


def install() -> None:
    """Puts off these imports in this process, from now on.

    A further call, where the zygote has done so, changes nothing.
    """
    if not any(getattr(finder, "puts_imports_off", False) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DeferringFinder())


class _DeferringFinder(MetaPathFinder):
    """Finds the modules above the ordinary way, and changes how they are executed."""

    # An attribute, not a class to compare with: a copy of this module has a class of its own.
    puts_imports_off = True

    def __init__(self) -> None:
        self._searching = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # The search for the ordinary way comes here too.
        if (fullname not in _DEFERRED and fullname != _WITHOUT_JAX) or getattr(
            self._searching, "now", False
        ):
            return None
        self._searching.now = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.now = False
        if spec and spec.loader:
            spec.loader = (_Deferring if fullname in _DEFERRED else _WithoutJax)(spec.loader)
        return spec


class _Wrapping(Loader):
    """Loads like another loader, which the module has in the end."""

    def __init__(self, original: Loader) -> None:
        self._original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._original


class _Deferring(_Wrapping):
    """Executes a module when a name is first asked of it (`__getattr__` of a module, PEP 562)."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if module.__name__.endswith(".lite"):
            # An empty package, whose first import would take this module's place as an attribute of
            # `tensorflow`.
            importlib.import_module("tensorflow.lite")
        lock, state = threading.RLock(), {"begun": False}

        def execute() -> None:
            # A thread that comes second waits until all names are there.
            with lock:
                if state["begun"]:
                    return
                state["begun"] = True
                try:
                    self._original.exec_module(module)
                except BaseException:
                    # Whoever asks next gets the error again.
                    state["begun"] = False
                    raise
                vars(module).pop("__getattr__", None)
                vars(module).pop("__dir__", None)

        def get(name: str) -> Any:
            if name.startswith("__") and name != "__all__":
                # `inspect` asks each module for such names: that is no use of the module.
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            execute()
            try:
                return vars(module)[name]
            except KeyError:
                raise AttributeError(
                    f"module {module.__name__!r} has no attribute {name!r}"
                ) from None

        def names() -> list[str]:
            execute()
            return sorted(vars(module))

        vars(module).update(__getattr__=get, __dir__=names)


class _WithoutJax(_Wrapping):
    """Executes a module that does without JAX.

    Meanwhile JAX counts as absent, unless it is imported already.
    """

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if "jax" in sys.modules:
            self._original.exec_module(module)
            return
        sys.modules["jax"] = None  # pyright: ignore[reportArgumentType] - the import system's sign for it
        try:
            self._original.exec_module(module)
        finally:
            del sys.modules["jax"]
