"""Runs the quick tests with the oldest versions that pyproject.toml admits, the newest, and the next Keras: ``versions.py [minimum] [newest] [nightly]``."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv-versions"
EXTRAS = "tensorflow,jax,torch,legacy,examples,remote,parquet,jobs,kubernetes,postgres,dev"
FRAMEWORKS = ("keras", "tensorflow", "tf_keras")


def minimums() -> list[str]:
    """The lowest release of each framework that is declared, with its newest fixes: ``keras==3.13.*``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["tensorflow"]]
    declared += project["optional-dependencies"]["legacy"]
    return [_minimum(each) for each in map(Requirement, declared) if each.name in FRAMEWORKS]


def _minimum(declared: Requirement) -> str:
    least = next(each.version for each in declared.specifier if each.operator == ">=")
    return f"{declared.name}=={'.'.join(least.split('.')[:2])}.*"


def build(name: str) -> Path:
    """Makes the environment of that name anew; its interpreter."""
    venv.create(FOLDER / name, clear=True, with_pip=True)
    python = FOLDER / name / "bin" / "python"
    # Of torch one version comes without CUDA where there is none.
    torch = next(
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line.startswith("torch==")
    )
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*install, torch, *(minimums() if name == "minimum" else []), "-e", f"{ROOT}[{EXTRAS}]"],
        check=True,
    )
    if name == "nightly":
        pip = [str(python), "-m", "pip"]
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", "keras"], check=True)
        subprocess.run([*install, "--pre", "--no-deps", "keras-nightly"], check=True)
    return python


def main(names: list[str]) -> int:
    """Exit code 1 if a test fails anywhere."""
    failed = []
    for name in names or ["minimum", "newest", "nightly"]:
        python = build(name)
        versions = subprocess.run(
            [str(python), "-m", "pip", "freeze"], capture_output=True, text=True, check=True
        )
        print(
            name,
            *(line for line in versions.stdout.split() if line.startswith(FRAMEWORKS)),
            flush=True,
        )
        tests = ["-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
        tests += ["-m", "not slow and not long"]
        if subprocess.run([str(python), *tests], cwd=ROOT, check=False).returncode:
            failed.append(name)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
