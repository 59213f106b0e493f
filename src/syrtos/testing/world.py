"""Runs a function on real workers: processes joined by MPI, as under `syrtos run`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from syrtos import settings
from syrtos.errors import SyrtosError
from syrtos.launch.plan import find_mpiexec

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
    """A worker failed; the message holds what all of them printed."""


def run_world(
    size: int,
    function: Callable[..., Any],
    *arguments: Any,
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
    dialects: bool = False,
) -> list[Any]:
    """Calls ``function(*arguments)`` on ``size`` workers and returns their results in rank order.

    The world has been joined when the function is called: it may use `syrtos.rank()`, `syrtos.allreduce(...)`.

    Args:
        size: number of workers; may exceed the cores.
        function: defined at the top level of a module that can be imported again from its file.
        arguments: JSON values.
        timeout: seconds after which the workers are killed.
        env: variables set on top of the environment.
        dialects: serve old APIs (`import horovod.tensorflow`), as `syrtos run` does.

    Raises:
        WorldFailed: a worker failed or the time is up.
    """
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "call.py")
        script.write_text(_CALL)
        call = [
            str(Path(function.__code__.co_filename)),
            function.__name__,
            folder,
            json.dumps(arguments),
            str(dialects),
        ]
        mpiexec = find_mpiexec(Path(sys.executable))
        _run(
            [str(mpiexec), "-launcher", "fork", "-n", str(size), sys.executable, "-m", "mpi4py", str(script), *call],
            timeout,
            env,
        )
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(size)]


def _run(command: list[str], timeout: float, env: Mapping[str, str] | None) -> None:
    environment = {**settings.environment(), "OMP_NUM_THREADS": "1", **(env or {})}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        process.kill()  # hydra's proxies end their workers when it goes
        output, _ = process.communicate()
        raise WorldFailed(f"The workers did not end within {timeout:.0f} s. They printed:\n{output}") from error
    if process.returncode:
        raise WorldFailed(f"A worker failed (exit code {process.returncode}). They printed:\n{output}")
