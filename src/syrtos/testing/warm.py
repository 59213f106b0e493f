"""A zygote for tests, started once for each environment that matters, and its processes as workers."""

from __future__ import annotations

import atexit
import functools
import importlib.util
from collections.abc import Mapping

from syrtos import settings
from syrtos.launch.processes import local
from syrtos.launch.processes.forking import Command, Forked, Zygote

# Variables that frameworks read when they are imported: a process gets a zygote that has imported them with the same
# values.
_READ_AT_IMPORT = ("JAX_", "KERAS_", "TF_USE_", "TF_ENABLE_", "TF_XLA_", "XLA_", "CUDA_", "LD_", "PYTHON")
# One thread for NumPy: a fork keeps none of the others. The hashes of strings are those of all workers.
_OF_ZYGOTES = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "1", "PYTHONHASHSEED": "0"}


def zygote(env: Mapping[str, str]) -> Zygote:
    """Returns this process's zygote for ``env``, which is started when it is first asked for.

    It has imported TensorFlow and the Keras that ``env`` chooses.
    """
    keras = "tf_keras" if env.get("TF_USE_LEGACY_KERAS", "") in ("1", "true", "True") else "keras"
    modules = tuple(name for name in (keras, "tensorflow") if importlib.util.find_spec(name))
    read = tuple(
        sorted(item for item in env.items() if item[0].startswith(_READ_AT_IMPORT) and item[0] not in _OF_ZYGOTES)
    )
    if not _zygote(modules, read).lives():
        _zygote.cache_clear()
    return _zygote(modules, read)


@functools.cache
def _zygote(modules: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> Zygote:
    rest = {name: value for name, value in settings.environment().items() if not name.startswith(_READ_AT_IMPORT)}
    found = Zygote(dict.fromkeys(modules, ""), {**rest, **dict(env), **_OF_ZYGOTES})
    found.wait()
    atexit.register(found.close)
    return found


def start(env: Mapping[str, str]) -> local.Start:
    """Returns a stand-in for `local.start`: the workers are forked by the zygote for ``env``."""
    path = zygote(env).path

    def make_forked(command: tuple[str, ...], env: Mapping[str, str], pmi: int, files: local.Files) -> Forked:
        return Forked(path, Command(command[1:], env), (*files, pmi))

    return make_forked
