"""The public names of the installed Keras and TensorFlow, read from the files of their packages.

Nothing is imported. Both packages generate their public modules as files of plain imports
(`keras/optimizers/__init__.py`, `tensorflow/_api/v2/io/__init__.py`), so that a name is public if a
file imports or defines it. Seen on Keras 3.12 to 3.15 and TensorFlow 2.18 to 2.21.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from pathlib import Path

from syrtos.doctor import installed_words
from syrtos.doctor.packages import folder
from syrtos.launch.spelling import closest_name

# Modules that TensorFlow makes at run time, and where their files are.
_ELSEWHERE = {
    "tensorflow.keras": "keras._tf_keras.keras",
    "tensorflow.compat.v1.keras": "keras._tf_keras.keras",
    "tensorflow.compat.v2.keras": "keras._tf_keras.keras",
    "tensorflow.losses": "keras._tf_keras.keras.losses",
    "tensorflow.metrics": "keras._tf_keras.keras.metrics",
    "tensorflow.optimizers": "keras._tf_keras.keras.optimizers",
    "tensorflow.initializers": "keras._tf_keras.keras.initializers",
}
_PRIVATE = (
    "tensorflow.python.",
    "tensorflow.core.",
    "tensorflow.lite.",
    "tensorflow.compiler.",
    "tensorflow.security.",
    "tensorflow.tools.",
    "tensorflow.raw_ops.",
    "tensorflow.compat.v2.",
    "keras.src.",
    "keras.api.",
)


def missing_part(path: str) -> str | None:
    """Returns the shortest beginning of a dotted path that is not public any more.

    Returns None if all of the path is public, or if that can't be known.

    Args:
        path: a dotted path of TensorFlow, Keras, NumPy, JAX or torch, such as
            ``tensorflow.keras.optimizers.Adam``.
    """
    root, *parts = path.split(".")
    if root in installed_words.ROOTS:
        return installed_words.missing_part(path)
    if (
        root not in ("tensorflow", "keras")
        or f"{path}.".startswith(_PRIVATE)
        or folder(root) is None
    ):
        return None
    module = root
    for number, part in enumerate(parts, 1):
        module_path = ".".join([root, *parts[:number]])
        if part.startswith("__"):
            return None
        if module_path in _ELSEWHERE:
            module = _ELSEWHERE[module_path]
            continue
        names = _names(module)
        if names is None:
            # What follows is an attribute of a class or a function, which is not known.
            return None
        if part not in names:
            return module_path
        module = names[part]
    return None


def is_of_tensorflow_1(path: str) -> bool:
    """Returns whether ``tf.compat.v1`` still has ``path``, a name that TensorFlow 2 lacks."""
    return (
        path.startswith("tensorflow.")
        and not path.startswith("tensorflow.compat.")
        and missing_part(path.replace("tensorflow.", "tensorflow.compat.v1.", 1)) is None
    )


def near(path: str) -> list[str]:
    """Returns public names with the same last word in Keras's main modules.

    The name may have moved to one of them.
    """
    if path.split(".")[0] in installed_words.ROOTS:
        return []
    word = path.rpartition(".")[2]
    rooms = (
        "layers",
        "utils",
        "optimizers",
        "callbacks",
        "losses",
        "metrics",
        "ops",
        "models",
        "saving",
        "random",
        "initializers",
        "regularizers",
        "constraints",
        "applications",
        "datasets",
        "backend",
    )
    return [f"keras.{room}.{word}" for room in rooms if word in (_names(f"keras.{room}") or {})]


def suggestion(path: str) -> str | None:
    """Returns the name in the same module that is most like a path's last word; else None."""
    module, _, word = path.rpartition(".")
    if path.split(".")[0] in installed_words.ROOTS:
        return installed_words.suggestion(path)
    return closest_name(word, _names(module) or {})


@functools.cache
def _names(module: str) -> Mapping[str, str] | None:
    """Returns the names in a public module, with the module that each stands for.

    The result is None if there is no such module. A name that is no module stands for a dotted path
    without a file, or for an empty one.
    """
    file = _file(module)
    if file is None:
        return None
    found: dict[str, str] = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update(
                {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
            )
        elif isinstance(node, ast.Assign):
            found.update({t.id: "" for t in node.targets if isinstance(t, ast.Name)})
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ""
    found.update(
        {
            path.stem if path.is_file() else path.name: f"{module}.{path.stem}"
            for path in _submodules(file)
        }
    )
    return found


def _submodules(file: Path) -> list[Path]:
    """Returns the submodules beside a package's `__init__.py`: imports by full name find them."""
    if file.name != "__init__.py":
        return []
    return [
        path
        for path in file.parent.iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").is_file()
    ]


def _file(module: str) -> Path | None:
    root, *parts = module.split(".")
    if root == "tensorflow" and parts[:1] != ["_api"] and parts:
        parts = ["_api", "v2", *parts]
    base = folder(root)
    stem = base.joinpath(*parts) if base else None
    if stem is None:
        return None
    return next(
        (path for path in (stem / "__init__.py", stem.with_suffix(".py")) if path.is_file()), None
    )
