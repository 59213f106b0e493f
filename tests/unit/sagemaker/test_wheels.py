"""The wheel that is made of the installed package."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

from syrtos.sagemaker import wheels


class _Told(importlib.metadata.Distribution):
    """Metadata as an installed package has it."""

    def read_text(self, filename: str) -> str | None:
        texts = {
            "METADATA": "Metadata-Version: 2.1\nName: ours\nVersion: 1.2\n",
            "entry_points.txt": "[console_scripts]\nours = ours:main\n",
        }
        return texts.get(filename)

    def locate_file(self, path: object) -> Path:  # type: ignore[override]
        return Path(str(path))


def test_pip_installs_a_wheel_of_the_package_as_it_is_here(tmp_path: Path) -> None:
    package = tmp_path / "src" / "ours"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("def main(): print('it runs')\n")
    (package / "data.txt").write_text("data")
    (package / "__pycache__" / "x.pyc").write_text("no")
    wheel = wheels.pack(_Told(), [package], tmp_path)
    assert wheel.name == "ours-1.2-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {"ours/__init__.py", "ours/data.txt", "ours-1.2.dist-info/RECORD"} <= {*names}
    assert not any("pycache" in name for name in names)
    there = tmp_path / "there"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-index",
        "--target",
        str(there),
    ]
    subprocess.run(
        [*pip, "--find-links", str(tmp_path), "ours==1.2"], check=True, capture_output=True
    )
    ran = subprocess.run(
        [sys.executable, "-c", "import ours; ours.main()"],
        cwd=there,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "it runs\n"


def test_what_images_have_and_what_extras_want_does_not_travel() -> None:
    asked = ["keras>=3.12", "mpich>=5.0", "numpy", "mpi4py>=4.1", 'jax>=0.10; extra == "jax"']
    assert [str(each) for each in wheels.needed(asked)] == ["mpich>=5.0", "mpi4py>=4.1"]
