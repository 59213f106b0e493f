"""The dialects: ours, and other packages' by entry points of the group ``syrtos.dialects``."""

from __future__ import annotations

from syrtos import entry_points
from syrtos.dialects.dialect import Dialect

_HERE = "syrtos.dialects."
_HOROVOD = _HERE + "horovod"
_SMDDP = _HERE + "smdistributed"
_MULTI_GPU = _HERE + "multi_gpu"

# Names alone: the modules of dialects import TensorFlow.
OURS = (
    Dialect(
        "horovod",
        serves={
            "horovod": _HOROVOD,
            "horovod.common": _HOROVOD + ".exceptions",
            "horovod.common.exceptions": _HOROVOD + ".exceptions",
            "horovod.common.process_sets": _HOROVOD + ".basics",
            "horovod.common.util": _HOROVOD + ".util",
            "horovod.runner": _HOROVOD + ".util",
            "horovod.runner.common": _HOROVOD + ".util",
            "horovod.runner.common.util": _HOROVOD + ".util",
            "horovod.runner.common.util.env": _HOROVOD + ".util",
            "horovod.runner.util": _HOROVOD + ".util",
            "horovod.runner.util.threads": _HOROVOD + ".util",
            "horovod.tensorflow": _HOROVOD + ".tensorflow",
            "horovod.tensorflow.callbacks": _HOROVOD + ".callbacks",
            "horovod.tensorflow.compression": _HOROVOD + ".compression",
            "horovod.tensorflow.elastic": _HOROVOD + ".elastic",
            "horovod.tensorflow.functions": _HOROVOD + ".functions",
            "horovod.tensorflow.mpi_ops": _HOROVOD + ".ops",
            "horovod.tensorflow.sync_batch_norm": _HOROVOD + ".sync_batch_norm",
            "horovod.tensorflow.util": _HOROVOD + ".util",
            "horovod.tensorflow.keras": _HOROVOD + ".keras",
            "horovod.tensorflow.keras.callbacks": _HOROVOD + ".callbacks",
            "horovod.tensorflow.keras.elastic": _HOROVOD + ".keras_elastic",
            "horovod.keras": _HOROVOD + ".keras",
            "horovod.keras.callbacks": _HOROVOD + ".callbacks",
            "horovod.keras.elastic": _HOROVOD + ".keras_elastic",
        },
    ),
    Dialect(
        "smdistributed",
        serves={
            "smdistributed": _SMDDP,
            "smdistributed.dataparallel": _SMDDP,
            "smdistributed.dataparallel.tensorflow": _SMDDP,
            "smdistributed.dataparallel.tensorflow.keras": _SMDDP,
        },
    ),
    Dialect("tensorflow1", adds_to=("tensorflow",), installer=_HERE + "tensorflow1:install"),
    Dialect("tf_distribute", adds_to=("tensorflow",), installer=_HERE + "tf_distribute:install"),
    Dialect(
        "parameter_server", adds_to=("tensorflow",), installer=_HERE + "parameter_server:install"
    ),
    Dialect(
        "multi_gpu",
        serves={
            "keras.utils.multi_gpu_utils": _MULTI_GPU,
            "keras.utils.training_utils": _MULTI_GPU,
        },
        adds_to=("keras", "tf_keras"),
        installer=_MULTI_GPU + ":install",
    ),
)


def of_other_packages() -> list[Dialect]:
    """Returns the dialects that installed packages name.

    Raises:
        ConfigurationError: one of them can't be loaded, or is no `Dialect`.
    """
    return [_load(name) for name in entry_points.names(entry_points.DIALECTS)]


def serving(package: str) -> Dialect | None:
    """Returns the dialect whose entry point has the name of a package; None without one."""
    return _load(package) if package in entry_points.names(entry_points.DIALECTS) else None


def _load(name: str) -> Dialect:
    return entry_points.load_instance(entry_points.DIALECTS, name, Dialect)
