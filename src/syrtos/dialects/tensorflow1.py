"""Errors that explain TensorFlow 1's names, in place of one AttributeError after the other."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import NoReturn

import tensorflow as tf

from syrtos.errors import GoneError
from syrtos.keras.tensorflow import tf_internals

# Parts of TensorFlow that have lost names; each has a counterpart under `tf.compat.v1`.
_PARTS = (
    "image",
    "initializers",
    "io",
    "losses",
    "math",
    "metrics",
    "nn",
    "random",
    "saved_model",
    "summary",
    "train",
)
# Names that need another word than the one for all.
_INSTEAD = {
    "contrib": (
        "tf.contrib was removed as a whole; Keras has layers, metrics and optimizers in its place,"
        " and `tf.data` its input pipelines"
    ),
    "layers": (
        "use `keras.layers` and a keras.Model, or `tf.compat.v1.layers` inside the `model_fn` of a "
        "tf.estimator.Estimator"
    ),
}
_TRAINING = (
    "train a keras.Model by `model.fit`, or keep the graph as the `model_fn` of a"
    " tf.estimator.Estimator, which syrtos serves; helpers alone (flags, logging, gfile) are under"
    " `tf.compat.v1`"
)


@functools.cache
def install() -> None:
    """Makes TensorFlow 2 explain the names of TensorFlow 1 that it lacks.

    `import tensorflow.compat.v1` finds what syrtos adds to it.
    """
    tf_internals.keep_compat_modules()
    _explain(tf, tf.compat.v1, "tf")
    for part in _PARTS:
        _explain(getattr(tf, part, None), getattr(tf.compat.v1, part, None), f"tf.{part}")


def _explain(module: object, before: object, name: str) -> None:
    """Makes ``module`` explain the names that only ``before``, its TensorFlow 1 version, has."""
    # A part that this version of TensorFlow lacks is None. A module with a `__getattr__` loads its
    # names by it.
    if isinstance(module, ModuleType) and before is not None and "__getattr__" not in vars(module):
        vars(module)["__getattr__"] = functools.partial(_raise_missing, name, before)


def _raise_missing(place: str, before: object, name: str) -> NoReturn:
    known = name in _INSTEAD if place == "tf" else False
    # `hasattr` asks for names that no version has, and has to get an AttributeError.
    if name.startswith("_") or not (known or name in dir(before)):
        raise AttributeError(
            f"module 'tensorflow' has no attribute {f'{place}.{name}'.removeprefix('tf.')!r}"
        )
    raise GoneError(
        f"`{place}.{name}` belongs to TensorFlow 1, for which this script was written, and"
        f" TensorFlow {tf.__version__} runs it no longer: {_INSTEAD.get(name, _TRAINING)}."
    )
