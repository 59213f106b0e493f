"""The dialect of `tf.estimator`, which `syrtos` finds by an entry point of `syrtos.dialects`."""

from __future__ import annotations

from syrtos.dialects.dialect import Dialect

_HERE = "syrtos_estimator."

# Names alone: it is imported in the middle of TensorFlow's own import.
DIALECT = Dialect(
    "estimator",
    serves={
        **{
            f"{package}.estimator{inner}": _HERE + module
            for package in ("tensorflow", "tensorflow.compat.v1", "tensorflow.compat.v2")
            for inner, module in (
                ("", "module"),
                (".export", "export_module"),
                (".experimental", "experimental_module"),
            )
        },
        "tensorflow.keras.estimator": _HERE + "keras_module",
        "keras.estimator": _HERE + "keras_module",
    },
    adds_to=("tensorflow", "keras", "tf_keras"),
    installer=_HERE + "lost_names:install",
)
