"""The names of Estimators that TensorFlow and Keras have lost, and get again under `syrtos`."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

_PLACES = ("tensorflow", "tensorflow.compat.v1", "tensorflow.compat.v2")
# Where `tf.keras` finds its names, with Keras 3 and Keras 2.
_KERAS = ("keras._tf_keras.keras", "tf_keras", "tf_keras.api._v2.keras")


def install() -> None:
    """Gives TensorFlow and Keras, as far as they are imported, the names that they have lost."""
    if sys.modules.get("tensorflow") is not None:
        tensorflow: Any = sys.modules["tensorflow"]
        # TensorFlow 2.16 lost the module, and hides `layers` of TensorFlow 1 where Keras is Keras
        # 3.
        estimator = _Later("namespace")
        for place in _PLACES:
            functools.reduce(getattr, place.split(".")[1:], tensorflow).estimator = estimator
        tensorflow.compat.v1.layers = _Later("layers")
    for name in _KERAS:
        if _is_complete(name.partition(".")[0]):
            keras: Any = importlib.import_module(name)
            keras.estimator = _Later("keras_namespace")


def _is_complete(package: str) -> bool:
    """Returns whether a package has been imported completely."""
    # A package that is being imported, and that has imported TensorFlow on its way, is installed
    # into later.
    module = sys.modules.get(package)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


class _Later:
    """A stand-in for the result of a function of `names`, called when an attribute is used."""

    # The modules of the Estimator need TensorFlow complete, and most scripts that import TensorFlow
    # have no Estimator.

    def __init__(self, function: str) -> None:
        self._function = function

    def __getattr__(self, name: str) -> Any:
        names = importlib.import_module("syrtos_estimator.names")
        return getattr(getattr(names, self._function)(), name)
