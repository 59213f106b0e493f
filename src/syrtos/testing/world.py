"""Runs a function on real workers: processes joined by MPI, as under `syrtos run`."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from syrtos import settings
from syrtos.errors import ConfigurationError, SyrtosError
from syrtos.launch.forking import Command
from syrtos.launch.plan import find_mpiexec
from syrtos.testing import warm

_CALL = """
import importlib.util, json, sys
from pathlib import Path
import syrtos
syrtos.init()
module, function, folder, argument, dialects = sys.argv[1:]
if dialects == "True":
    import syrtos.dialects
    syrtos.dialects.install()
sys.path.insert(0, str(Path(module).parent))
spec = importlib.util.spec_from_file_location("under_test", module)
loaded = importlib.util.module_from_spec(spec)
sys.modules["under_test"] = loaded
spec.loader.exec_module(loaded)
arguments = json.loads(argument)
result = getattr(loaded, function)(*arguments)
Path(folder, f"{syrtos.rank()}.json").write_text(json.dumps(result))
"""


class WorldFailed(SyrtosError):
    """A worker failed; the message holds the output of all."""


def run_world(
    size: int,
    function: Callable[..., Any],
    *arguments: Any,
    timeout: float = 600.0,
    env: Mapping[str, str] | None = None,
    dialects: bool = False,
    forked: bool = True,
) -> list[Any]:
    """Calls ``function(*arguments)`` on ``size`` workers and returns their results in rank order.

    The world has been joined when the function is called: it may use `syrtos.rank()`, `syrtos.allreduce(...)`. The first call of a process
    imports TensorFlow and Keras, once; the workers of that call and all later ones are forked, and begin to train after a second.

    Args:
        size: number of workers; may exceed the cores.
        function: defined at the top level of a module that can be imported again from its file.
        arguments: JSON values.
        timeout: seconds after which the workers are killed.
        env: variables set on top of the environment.
        dialects: serve old APIs (`import horovod.tensorflow`), as `syrtos run` does.
        forked: False starts new interpreters with `mpiexec`, which suits a single call that imports no framework.

    Raises:
        ConfigurationError: workers can't find the function by its name and file.
        WorldFailed: a worker failed or the time is up.
    """
    source = _source_of(function)
    environment = {**settings.environment(), "OMP_NUM_THREADS": "1", **(env or {})}
    with tempfile.TemporaryDirectory(prefix="syrtos-") as folder:
        script = Path(folder, "call.py")
        script.write_text(_CALL)
        call = [str(script), str(source), function.__name__, folder, json.dumps(arguments), str(dialects)]
        start = _fork if forked else _start
        start(size, ("-m", "mpi4py", *call), environment, timeout, Path(folder))
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(size)]


def _source_of(function: Callable[..., Any]) -> Path:
    """The file of a function that another process can find there by its name."""
    source = Path(inspect.getsourcefile(function) or "") if inspect.isfunction(function) else Path()
    name = getattr(function, "__qualname__", repr(function))
    if source.is_file() and name.isidentifier():
        return source.resolve()
    reasons = {"<lambda>": "a lambda", "<locals>": "defined inside of another function"}
    reason = next((text for mark, text in reasons.items() if mark in name), "no function of a file")
    raise ConfigurationError(
        f"run_world was given {name}, which is {reason}. Each worker imports the function again, by its file and name. "
        "Define it with `def` at the top level of a module, and hand over values as arguments: `run_world(2, check, 3)`."
    )


def _fork(size: int, argv: Sequence[str], env: Mapping[str, str], timeout: float, folder: Path) -> None:
    zygote = warm.zygote(env)
    with contextlib.ExitStack() as stack:
        nothing = stack.enter_context(open(os.devnull, "rb")).fileno()
        outputs = [stack.enter_context((folder / f"{rank}.out").open("wb")).fileno() for rank in range(size)]
        command = Command(argv, env, os.getcwd())
        workers = warm.World(zygote.path, size, command, [(nothing, output, output) for output in outputs])
        stack.callback(workers.close)
        try:
            codes = workers.codes(timeout)
        except TimeoutError as error:
            raise WorldFailed(f"The workers did not end within {timeout:.0f} s. {_printed(folder, size)}") from error
    failed = next(((rank, code) for rank, code in codes.items() if code), None)
    if failed:
        raise WorldFailed(f"Rank {failed[0]} failed (exit code {failed[1]}). {_printed(folder, size)}")


def _printed(folder: Path, size: int) -> str:
    texts = [(folder / f"{rank}.out").read_text(errors="replace") for rank in range(size)]
    return "They printed:\n" + "".join(f"-- rank {rank} --\n{text}" for rank, text in enumerate(texts))


def _start(size: int, argv: Sequence[str], env: Mapping[str, str], timeout: float, folder: Path) -> None:
    command = [str(find_mpiexec(Path(sys.executable))), "-launcher", "fork", "-n", str(size), sys.executable, *argv]
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        process.kill()  # hydra's proxies end their workers when it goes
        output, _ = process.communicate()
        raise WorldFailed(f"The workers did not end within {timeout:.0f} s. They printed:\n{output}") from error
    if process.returncode:
        raise WorldFailed(f"A worker failed (exit code {process.returncode}). They printed:\n{output}")
