"""Runs a function on real workers: processes joined by MPI, as under `syrtos run`."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from syrtos import settings
from syrtos.errors import ConfigurationError, SyrtosError
from syrtos.launch.plan import Group
from syrtos.launch.processes.local import Local, Start, start
from syrtos.testing import warm

_LAST_OUTPUT = 5.0  # seconds

_CALL = """
import importlib.util, json, sys
from pathlib import Path
import syrtos
from syrtos.comm import world
from syrtos.launch.processes import leftovers
syrtos.init()
leftovers.unlink_early(world.current())
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

    The world has been joined when the function is called: it may use `syrtos.rank()`,
    `syrtos.allreduce(...)`. The first call of a process imports TensorFlow and Keras, once; the
    workers of that call and all later ones are forked, and begin to train after a second.

    Args:
        size: number of workers; may exceed the cores.
        function: a function at the top level of a module that can be imported again from its file.
        arguments: JSON values.
        timeout: seconds after which the workers are killed.
        env: variables set on top of the environment.
        dialects: whether old APIs (`import horovod.tensorflow`) are served, as `syrtos run` does.
        forked: False starts new interpreters, which suits a single call that imports no framework.

    Raises:
        ConfigurationError: workers can't find the function by its name and file.
        WorldFailed: a worker failed or the time is up.
    """
    source = _source_of(function)
    environment = {**settings.environment(), "OMP_NUM_THREADS": "1", **(env or {})}
    with tempfile.TemporaryDirectory(prefix="syrtos-") as folder:
        script = Path(folder, "call.py")
        script.write_text(_CALL)
        call = [
            str(script),
            str(source),
            function.__name__,
            folder,
            json.dumps(arguments),
            str(dialects),
        ]
        # mpi4py runs a script so that a failure ends all workers.
        command = (sys.executable, "-m", "mpi4py", *call)
        _run(
            command,
            size,
            environment,
            warm.start(environment) if forked else start,
            timeout,
            Path(folder),
        )
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(size)]


def _source_of(function: Callable[..., Any]) -> Path:
    """Returns the file of a function, in which another process can find it by its name.

    Raises:
        ConfigurationError: there is no such file.
    """
    source = Path(inspect.getsourcefile(function) or "") if inspect.isfunction(function) else Path()
    name = getattr(function, "__qualname__", repr(function))
    if source.is_file() and name.isidentifier():
        return source.resolve()
    reasons = {"<lambda>": "a lambda", "<locals>": "defined inside of another function"}
    reason = next((text for mark, text in reasons.items() if mark in name), "no function of a file")
    raise ConfigurationError(
        f"run_world was given {name}, which is {reason}. Each worker imports the function again, by"
        " its file and name. Define it with `def` at the top level of a module, and hand over"
        " values as arguments: `run_world(2, check, 3)`."
    )


def _run(
    command: tuple[str, ...],
    size: int,
    env: Mapping[str, str],
    start: Start,
    timeout: float,
    folder: Path,
) -> None:
    """Runs the workers to their end; the first that fails ends the others."""
    deadline = time.monotonic() + timeout
    # MPI's data ports need not listen beyond loopback.
    engine = Local(
        [Group(command, range(size))], [0] * size, {"UCX_NET_DEVICES": "lo", **env}, start
    )
    copying = [
        threading.Thread(target=_copy, args=(pipe, folder / f"{rank}.out"), daemon=True)
        for rank, outputs in engine.outputs.items()
        for pipe in (outputs.out, outputs.err)
    ]
    for thread in copying:
        thread.start()
    why = ""
    try:
        while engine.runs() and not why:
            failed = next((ended for ended in engine.wait(0.05) if ended.code), None)
            if failed:
                why = f"Rank {failed.rank} failed (exit code {failed.code})."
            elif time.monotonic() > deadline:
                why = f"The workers did not end within {timeout:.0f} s."
    finally:
        engine.kill()
    for thread in copying:
        # a child of a worker may hold the pipe for as long as it likes
        thread.join(_LAST_OUTPUT)
    if why:
        raise WorldFailed(f"{why} {_printed_text(folder, size)}")


def _copy(source: IO[bytes], target: Path) -> None:
    with target.open("ab") as file:
        shutil.copyfileobj(source, file)


def _printed_text(folder: Path, size: int) -> str:
    texts = [(folder / f"{rank}.out").read_text(errors="replace") for rank in range(size)]
    return "They printed:\n" + "".join(
        f"-- rank {rank} --\n{text}" for rank, text in enumerate(texts)
    )
