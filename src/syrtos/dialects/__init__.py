"""Old APIs over the core, served to scripts in place of packages that need not be installed; each is a leaf.

Only processes that syrtos started import them by their old names; there they win over an installed
original.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from syrtos.launch.worker.import_hook import after_import, serve

_HERE = "syrtos.dialects."

# The name in scripts → the module that answers.
SERVED = {
    "horovod": _HERE + "horovod",
    "horovod.common": _HERE + "horovod.exceptions",
    "horovod.common.exceptions": _HERE + "horovod.exceptions",
    "horovod.common.process_sets": _HERE + "horovod.basics",
    "horovod.common.util": _HERE + "horovod.util",
    "horovod.runner": _HERE + "horovod.util",
    "horovod.runner.common": _HERE + "horovod.util",
    "horovod.runner.common.util": _HERE + "horovod.util",
    "horovod.runner.common.util.env": _HERE + "horovod.util",
    "horovod.runner.util": _HERE + "horovod.util",
    "horovod.runner.util.threads": _HERE + "horovod.util",
    "horovod.tensorflow": _HERE + "horovod.tensorflow",
    "horovod.tensorflow.callbacks": _HERE + "horovod.callbacks",
    "horovod.tensorflow.compression": _HERE + "horovod.compression",
    "horovod.tensorflow.elastic": _HERE + "horovod.elastic",
    "horovod.tensorflow.functions": _HERE + "horovod.functions",
    "horovod.tensorflow.mpi_ops": _HERE + "horovod.ops",
    "horovod.tensorflow.sync_batch_norm": _HERE + "horovod.sync_batch_norm",
    "horovod.tensorflow.util": _HERE + "horovod.util",
    "horovod.tensorflow.keras": _HERE + "horovod.keras",
    "horovod.tensorflow.keras.callbacks": _HERE + "horovod.callbacks",
    "horovod.tensorflow.keras.elastic": _HERE + "horovod.keras_elastic",
    "horovod.keras": _HERE + "horovod.keras",
    "horovod.keras.callbacks": _HERE + "horovod.callbacks",
    "horovod.keras.elastic": _HERE + "horovod.keras_elastic",
    "smdistributed": _HERE + "smdistributed",
    "smdistributed.dataparallel": _HERE + "smdistributed",
    "smdistributed.dataparallel.tensorflow": _HERE + "smdistributed",
    "smdistributed.dataparallel.tensorflow.keras": _HERE + "smdistributed",
    **{
        f"{package}.estimator{inner}": f"{_HERE}estimator.{module}"
        for package in ("tensorflow", "tensorflow.compat.v1", "tensorflow.compat.v2")
        for inner, module in (
            ("", "module"),
            (".export", "export_module"),
            (".experimental", "experimental_module"),
        )
    },
    "tensorflow.keras.estimator": _HERE + "estimator.keras_module",
    "keras.estimator": _HERE + "estimator.keras_module",
    "keras.utils.multi_gpu_utils": _HERE + "multi_gpu",
    "keras.utils.training_utils": _HERE + "multi_gpu",
}

# What a package gets that is there, once it has been imported.
_ADDED = (
    ("tensorflow", "tensorflow1"),
    ("tensorflow", "tf_distribute"),
    ("tensorflow", "parameter_server"),
    ("tensorflow", "estimator"),
    ("keras", "estimator"),
    ("keras", "multi_gpu"),
    ("tf_keras", "estimator"),
    ("tf_keras", "multi_gpu"),
)


def install() -> None:
    """Serves the modules of `SERVED` in this process, and gives packages the old names that they have lost."""
    serve(SERVED)
    for package, dialect in _ADDED:
        after_import(package, _installer(package, _HERE + dialect))


def _installer(package: str, module: str) -> Callable[[], None]:
    def install() -> None:
        """Installs the dialect; into Keras only if its backend is TensorFlow."""
        # all old APIs are TensorFlow's: with another backend there may be none
        if package != "keras" or sys.modules["keras"].backend.backend() == "tensorflow":
            importlib.import_module(module).install()

    return install
