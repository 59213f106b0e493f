"""The patches of functions that write or read files, of Keras 3 and of Keras 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Concatenate

from syrtos.keras import backend
from syrtos.keras.files import write_once
from syrtos.keras.patching import Method, Patch, by_all

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, P, R

Wrapper = Callable[[Method], Method]

_ONCE = (
    "A file is written once for all workers. Behind the methods and the functions of all names: the"
    " path is final, its suffix has been checked. Variables in parts are gathered before."
)
_READ = "Another worker may be about to write the file; the position in the data is found again."


def _gathering(
    original: Callable[Concatenate[Model, P], R],
) -> Callable[Concatenate[Model, P], R]:
    """Wraps a function that saves a model: all workers gather the variables held in parts."""

    def save(model: Model, *args: P.args, **kwargs: P.kwargs) -> R:
        with backend.active().gathering_variables(model):
            return original(model, *args, **kwargs)

    return save


def of_package(
    package: str,
    saving: Sequence[tuple[str, str]],
    downloads: str,
    saves: Sequence[Wrapper] = (),
    finds: Sequence[Wrapper] = (),
) -> list[Patch]:
    """Returns the patches of a package, ``keras`` or ``tf_keras``.

    Args:
        package: its name.
        saving: the modules and names of the functions that write a model.
        downloads: the module of `urlretrieve`.
        saves: further wrappers of these functions, innermost.
        finds: further wrappers of the functions that load a model, innermost.
    """
    api, utils = f"{package}.src.saving.saving_api", f"{package}.utils"
    once = write_once.writing
    write = by_all(*saves, once("filepath"), _gathering)
    export = by_all(once("filepath", complete=False), _gathering)
    read = by_all(*finds, write_once.reading("filepath"))
    return [
        *(Patch(module, name, write, _ONCE) for module, name in saving),
        Patch(
            f"{package}:Model",
            "export",
            export,
            "Prints the path that it is given; `tf.saved_model.save` makes the files appear complete.",
        ),
        *(
            Patch(api, name, read, _READ, everywhere=True)
            for name in ("load_model", "load_weights")
        ),
        Patch(utils, "save_img", once("path"), _ONCE, everywhere=True),
        Patch(utils, "plot_model", once("to_file"), _ONCE, everywhere=True),
        Patch(
            downloads, "urlretrieve", once("filename"), "A download appears complete or not at all."
        ),
        Patch(
            utils,
            "get_file",
            write_once.fetching,
            "One worker of a host fetches a file, and the others wait.",
            everywhere=True,
        ),
    ]
