"""A zygote for tests, started once for each environment that matters; and worlds of its processes."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import importlib.util
import signal
import time
from collections.abc import Mapping, Sequence

from syrtos import settings
from syrtos.launch.forking import Command, Family, Zygote
from syrtos.launch.pmi import ProcessManager

# Variables that frameworks read when they are imported: a process gets a zygote that has imported them with the same values.
_READ_AT_IMPORT = ("JAX_", "KERAS_", "TF_USE_", "TF_ENABLE_", "TF_XLA_", "XLA_", "CUDA_", "LD_", "PYTHON")
# One thread for NumPy: a fork keeps none of the others. The hashes of strings are those of all workers.
_OF_ZYGOTES = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "1", "PYTHONHASHSEED": "0"}


def zygote(env: Mapping[str, str]) -> Zygote:
    """This process's zygote for ``env``, started when it is asked for first: with TensorFlow and the Keras that ``env`` chooses."""
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
    found = Zygote(modules, {**rest, **dict(env), **_OF_ZYGOTES})
    found.wait()
    atexit.register(found.close)
    return found


class World(Family):
    """The workers of a world of this host: each finds the others by PMI when MPI starts in it."""

    def __init__(self, path: str, size: int, command: Command, files: Sequence[tuple[int, int, int]]) -> None:
        super().__init__(path)
        self._manager = manager = ProcessManager(size, end_all=lambda: self.signal(signal.SIGKILL))
        manager.start()
        self.ranks: dict[int, int] = {}
        for rank, end in enumerate(manager.ends):
            env = {"UCX_NET_DEVICES": "lo", **command.env, **manager.environment(rank, -1)}
            pid = self.fork(dataclasses.replace(command, env=env), (*files[rank], end.fileno()))
            self.ranks[pid] = rank
            end.close()

    def codes(self, timeout: float | None = None, spare: bool = False) -> dict[int, int]:
        """Waits for all; exit codes by rank, in the order in which they ended. One that fails ends the others, unless ``spare``.

        Raises:
            TimeoutError: not all have ended within ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        codes: dict[int, int] = {}
        while self.pids:
            pid, code = self.wait(None if deadline is None else max(deadline - time.monotonic(), 0.001))
            codes[self.ranks[pid]] = code
            if code and not spare:
                self.signal(signal.SIGKILL)
        return {**self._manager.aborted, **codes, **self._manager.aborted}
