"""The interface of a dialect: an old API over the core, and how scripts come to it."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Dialect:
    """An old API that scripts are written in. Its modules are imported when a script uses it.

    Attributes:
        name: the word for it, e.g. in messages.
        serves: the module that answers, by the name that scripts import; it wins over an installed
            original.
        adds_to: packages that are there, and get names that they have lost, once they have been
            imported.
        installer: the function without arguments that gives them these names, as
            ``module:function``; it is called after each import of a package of ``adds_to``.
        needs_tensorflow: whether ``installer`` is called for Keras 3 only if its backend is
            TensorFlow.
    """

    name: str
    serves: Mapping[str, str] = dataclasses.field(default_factory=dict)
    adds_to: tuple[str, ...] = ()
    installer: str = ""
    needs_tensorflow: bool = True

    def install_into(self, package: str, backend: str) -> None:
        """Calls the installer, after the import of a package of ``adds_to``.

        ``backend``: Keras's, if the package is ``keras``; else empty.
        """
        if package == "keras" and self.needs_tensorflow and backend != "tensorflow":
            return
        module, _, function = self.installer.partition(":")
        getattr(importlib.import_module(module), function)()
