"""Versions of the packages that a job's scripts import.

`python -m syrtos_jobs.runner.versions` prints them, which tells those of another interpreter.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from syrtos._version import __version__
from syrtos.launch.worker.interpreters import version

_PACKAGES = ("keras", "tensorflow", "tf_keras", "jax", "torch", "numpy", "mpi4py", "mpich")
_PATIENCE = 60.0  # seconds


def local_versions() -> dict[str, str]:
    """Returns the versions of this interpreter, found without an import.

    Packages that are not installed are left out.
    """
    found = {"python": platform.python_version(), "syrtos": __version__}
    return found | {name: number for name in _PACKAGES if (number := version(name, absent=""))}


def of(python: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Returns the versions of an interpreter; empty if it does not tell them.

    The interpreter may have packages of its own, which precede ours.

    Args:
        env: environment variables for the interpreter, whose packages may run code when it starts.
    """
    if python == Path(sys.executable):
        return local_versions()
    # -P: the working folder may hold files that are named like packages
    command = [str(python), "-P", "-m", "syrtos_jobs.runner.versions"]
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, check=True, timeout=_PATIENCE
        )
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}


if __name__ == "__main__":
    print(json.dumps(local_versions()))
