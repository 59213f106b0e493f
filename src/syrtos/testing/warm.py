"""Zygotes for tests, one for each environment that matters, and their processes as workers.

A process starts them for itself. Within `sharing` it shares them with the processes that it starts,
e.g. those of pytest-xdist: an import of TensorFlow takes seconds of processor time.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from syrtos import settings
from syrtos.comm import xla_library
from syrtos.launch.processes import local
from syrtos.launch.processes.forking import Command, Forked, Zygote

# Variables that frameworks read when they are imported: a process gets a zygote that has imported
# them with the same values.
_READ_AT_IMPORT = (
    "JAX_",
    "KERAS_",
    "TF_USE_",
    "TF_ENABLE_",
    "TF_XLA_",
    "XLA_",
    "CUDA_",
    "LD_",
    "PYTHON",
)
# One thread for NumPy: a fork keeps none of the others. The hashes of strings are those of all
# workers.
_OF_ZYGOTES = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "1", "PYTHONHASHSEED": "0"}
# The folder of the zygotes that are shared, which processes inherit with their environment.
_SHARED = "WARM_ZYGOTES_OF_SYRTOS"
# The FIFO that is the standard input of shared zygotes: they end when the process that shares them
# closes it.
_LIFE = "life"


@contextlib.contextmanager
def sharing() -> Iterator[None]:
    """Context manager: processes started within it share their zygotes, which end with it."""
    with tempfile.TemporaryDirectory(prefix="syrtos-", ignore_cleanup_errors=True) as folder:
        life = Path(folder, _LIFE)
        os.mkfifo(life)
        held = os.open(life, os.O_RDWR)  # for reading too, else opening it waits for a reader
        os.environ[_SHARED] = folder
        try:
            yield
        finally:
            del os.environ[_SHARED]
            os.close(held)


def zygote_path(env: Mapping[str, str]) -> str:
    """Returns the socket of a zygote for ``env``, which is started when one is first asked for.

    It has imported TensorFlow and the Keras that ``env`` chooses.
    """
    env = {"KERAS_BACKEND": "tensorflow", **env}  # Keras's own default
    keras = "tf_keras" if env.get("TF_USE_LEGACY_KERAS", "") in ("1", "true", "True") else "keras"
    # Keras can't be imported without its backend.
    wanted = (keras, "tensorflow") if importlib.util.find_spec(env["KERAS_BACKEND"]) else ()
    modules = tuple(name for name in wanted if importlib.util.find_spec(name))
    read = tuple(
        sorted(
            item
            for item in env.items()
            if item[0].startswith(_READ_AT_IMPORT) and item[0] not in _OF_ZYGOTES
        )
    )
    if folder := os.environ.get(_SHARED):
        return _shared(Path(folder), modules, read)
    if not _own(modules, read).lives():
        _own.cache_clear()
    return _own(modules, read).path


def _shared(folder: Path, modules: tuple[str, ...], read: tuple[tuple[str, str], ...]) -> str:
    """Returns the socket of a shared zygote, which the first process that needs it starts."""
    home = folder / hashlib.sha256(repr((modules, read)).encode()).hexdigest()[:16]
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = str(home / Zygote.SOCKET)
        if not _answers(path):
            shutil.rmtree(home, ignore_errors=True)  # the socket of one that was killed
            home.mkdir()
            with open(folder / _LIFE, "rb") as life:
                _zygote(modules, read, home=home, life=life).wait()
        return path


def _answers(path: str) -> bool:
    """Returns whether something listens at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _zygote(modules: tuple[str, ...], read: tuple[tuple[str, str], ...], **how: Any) -> Zygote:
    """Starts a zygote; ``how`` are more arguments of `Zygote`."""
    env = dict(read)
    exchange = xla_library.variables(env) if env.get("KERAS_BACKEND") == "jax" else {}
    return Zygote(dict.fromkeys(modules, ""), _environment(read) | exchange, **how)


@functools.cache
def _own(modules: tuple[str, ...], read: tuple[tuple[str, str], ...]) -> Zygote:
    """Returns a zygote of this process alone, which ends with it."""
    found = _zygote(modules, read)
    found.wait()
    atexit.register(found.close)
    return found


def _environment(read: tuple[tuple[str, str], ...]) -> dict[str, str]:
    rest = {
        name: value
        for name, value in settings.environment().items()
        if not name.startswith(_READ_AT_IMPORT)
    }
    return {**rest, **dict(read), **_OF_ZYGOTES}


def start(env: Mapping[str, str]) -> local.Start:
    """Returns a stand-in for `local.start`: the workers are forked by the zygote for ``env``."""
    path = zygote_path(env)

    def make_forked(
        command: tuple[str, ...], env: Mapping[str, str], pmi: int, files: local.Files
    ) -> Forked:
        return Forked(path, Command(command[1:], env), (*files, pmi))

    return make_forked
