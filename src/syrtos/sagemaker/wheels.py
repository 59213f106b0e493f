"""Wheels that travel with a job, so its container needs neither a package index nor a network."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement

from syrtos import own_packages
from syrtos.errors import ConfigurationError

# What images with a framework have; other versions than the framework's own could break it.
_OF_IMAGE = frozenset({"keras", "numpy", "ml_dtypes"})
# What wheels for Linux are called; pip looks for none that are not named.
_PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "linux_x86_64",
)


def collect(folder: Path, python: str) -> None:
    """Puts a wheel of syrtos into a folder, and wheels of needed packages that images don't have.

    Args:
        folder: the folder, which is made.
        python: the version of the Python that will install them; empty: that of this Python.

    Raises:
        ConfigurationError: syrtos is not installed here, or a wheel can't be had.
    """
    folder.mkdir()
    # syrtos as it is installed here, which no index may have
    found = _installed()
    pack(found, map(Path, own_packages.FOLDERS), folder)
    wanted = [str(each) for each in needed(found.requires or ())]
    version = python or f"{sys.version_info[0]}.{sys.version_info[1]}"
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--dest",
        str(folder),
    ]
    # pip downloads for another Python only if nothing has to be built
    target = ["--only-binary", ":all:", "--python-version", version, *platforms]
    done = subprocess.run(
        [*command, *target, *wanted], stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["?"])[-1]
        raise ConfigurationError(
            f"`Syrtos(wheels=True)`: pip found no wheels for Python {version} on x86-64: {why}. Say"
            " `python=` as the image has it, or leave `wheels` out."
        )


def _installed() -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution("syrtos")
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigurationError(
            "`Syrtos(wheels=True)` makes a wheel of the installed syrtos, and it is on the path"
            " without being installed: `pip install .` in its checkout."
        ) from error


def needed(requirements: Iterable[str]) -> Iterator[Requirement]:
    """Yields a package's requirements that images don't satisfy, without those of its extras."""
    for text in requirements:
        requirement = Requirement(text)
        extra = requirement.marker is not None and "extra" in str(requirement.marker)
        if requirement.name not in _OF_IMAGE and not extra:
            yield requirement


def pack(found: importlib.metadata.Distribution, packages: Iterable[Path], folder: Path) -> Path:
    """Makes a wheel of packages of pure Python as they are installed here, from a checkout or not.

    Args:
        found: its metadata.
        packages: their folders.
        folder: where the wheel is put.
    """
    name = f"{found.name}-{found.version}"
    files = {
        f"{package.name}/{path.relative_to(package).as_posix()}": path.read_bytes()
        for package in packages
        for path in _files(package)
    }
    about = f"{name}.dist-info"
    files[f"{about}/METADATA"] = (found.read_text("METADATA") or "").encode()
    files[f"{about}/entry_points.txt"] = (found.read_text("entry_points.txt") or "").encode()
    files[f"{about}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: syrtos\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    lines = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*lines, f"{about}/RECORD,,", ""]).encode()
    wheel = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


def _files(package: Path) -> list[Path]:
    return sorted(
        path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )


def _digest(data: bytes) -> str:
    """Returns a digest as RECORD has it (PEP 376)."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
