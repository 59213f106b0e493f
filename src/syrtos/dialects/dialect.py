"""The interface of a dialect: an old API over the core, and how scripts come to it.

Another package names its `Dialect` by an entry point of the group ``syrtos.dialects``, which has
the name of the package that the dialect serves. The module of the `Dialect` imports no framework:
it may be imported in the middle of a framework's own import.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping

from syrtos.errors import ConfigurationError


@dataclasses.dataclass(frozen=True)
class Dialect:
    """An old API that scripts are written in. Its modules are imported when a script uses it.

    Attributes:
        name: the word for it.
        serves: the module that answers for each name that scripts import. A dialect of syrtos wins
            over an installed original; one of another package serves what is not installed.
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

    def __post_init__(self) -> None:
        """Raises ConfigurationError if ``adds_to`` is given without ``installer``."""
        if self.adds_to and ":" not in self.installer:
            raise ConfigurationError(
                f"The dialect {self.name} adds names to {', '.join(self.adds_to)}, and its"
                f" `installer` should be `module:function`. Received: {self.installer!r}."
            )

    def install_into(self, package: str, backend: str) -> None:
        """Calls the installer, after the import of a package of ``adds_to``.

        ``backend``: Keras's, if the package is ``keras``; else empty.
        """
        if package == "keras" and self.needs_tensorflow and backend != "tensorflow":
            return
        module, _, function = self.installer.partition(":")
        getattr(importlib.import_module(module), function)()
