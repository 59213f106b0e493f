"""Builds the virtual environments with AWS's own SDKs, and with experiment trackers, that the conformance tests run:
`python tests/conformance/environments.py`.

One each, because SDK v2, SDK v3, the training toolkit and MLflow want different versions of the same packages, and none of them ours.
A constraints file names every package of its environment; an environment is built again when its file changes.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NAMES = ("v2", "v3", "toolkit", "trackers")
_HERE = Path(__file__).resolve().parent
FOLDER = _HERE.parent.parent / ".venv-sagemaker"


def ready(name: str) -> bool:
    """Whether an environment is there, as its constraints file wants it."""
    marker = FOLDER / name / "ready"
    return marker.is_file() and marker.read_text() == _version(name)


def make(name: str) -> None:
    """Makes an empty environment; what an interrupted try has left is removed first.

    Not in threads: a process that is forked while another thread copies its Python holds that file open for writing, and it can't be executed then.
    """
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    venv.create(FOLDER / name, with_pip=True, symlinks=True)


def install(name: str) -> None:
    """Installs the packages of an environment."""
    folder = FOLDER / name
    # --no-deps: the file is complete. SDK v3 declares packages that training never imports (mlflow, scipy: 650 MB), and so does MLflow (scipy, pyarrow).
    command = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "-qq",
        "--no-compile",
        "--disable-pip-version-check",
    ]
    subprocess.run([*command, "--no-deps", "-r", str(_constraints(name))], check=True)
    (folder / "ready").write_text(_version(name))


def main() -> int:
    """Builds what is missing."""
    missing = [name for name in NAMES if not ready(name)]
    for name in missing:
        make(name)
    with ThreadPoolExecutor() as threads:
        for name, _ in zip(missing, threads.map(install, missing), strict=True):
            print(f"{FOLDER / name} is ready")
    return 0


def _constraints(name: str) -> Path:
    return _HERE / f"constraints-{name}.txt"


def _version(name: str) -> str:
    """What an environment was made of: the packages, and the Python they were installed for."""
    words = [_constraints(name).read_text(), *map(str, sys.version_info[:2])]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
