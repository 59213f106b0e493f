"""Compiles the library by which XLA exchanges through a process's MPI, once a machine.

jaxlib reads the library's path from the environment when it is imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

# MPItrampoline, which is linked into jaxlib, reads it.
VARIABLE = "MPITRAMPOLINE_LIB"
_SOURCE = Path(__file__).with_name("xla_mpi.c")
_LIBRARY = "libjax_common.so"
_NAMES = re.compile(rb"\0(MPIX?ABI_\w+)(?=\0)")
_NAME = re.compile(r"xla-mpi-[0-9a-f]{16}\.so")
_TIMEOUT = 60.0  # seconds for the compiler


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables in which jaxlib is to be imported, to load the library.

    They are none where ``env`` names another library, or this machine can't make one: see `find`.
    """
    if VARIABLE in env or (path := find()) is None:
        return {}
    return {VARIABLE: str(path)}


@contextlib.contextmanager
def offering() -> Iterator[None]:
    """Offers the library to jaxlib, if it is loaded inside of the context."""
    given = {} if "jaxlib" in sys.modules else variables(os.environ)
    os.environ.update(given)
    try:
        yield
    finally:
        # Processes that the script starts have nothing to do with it.
        for name in given:
            del os.environ[name]


def find_loaded() -> Path | None:
    """Returns the path of the library that this process's jaxlib has loaded; None if it has none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[5:]
        if path and _NAME.fullmatch(os.path.basename(path[0])):
            return Path(path[0])
    return None


def find() -> Path | None:
    """Returns the path of the library for the jaxlib at hand, which is compiled if it is not there.

    It is None where there is no jaxlib with MPI, no C compiler, or no folder to write to.
    """
    spec = importlib.util.find_spec("jaxlib")
    if spec is None or not spec.submodule_search_locations:
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return _make(Path(next(iter(spec.submodule_search_locations))) / _LIBRARY)
    return None


def _make(jaxlib: Path) -> Path | None:
    source, stat = _SOURCE.read_text(), jaxlib.stat()
    key = hashlib.sha256(source.encode())
    key.update(f"{jaxlib} {stat.st_size} {stat.st_mtime_ns} {os.uname().machine}".encode())
    path = _folder() / f"xla-mpi-{key.hexdigest()[:16]}.so"
    if path.exists():
        return path
    compiler, names = shutil.which("cc"), _names(jaxlib)
    if compiler is None or not names:
        return None
    _compile(compiler, source + _code_of_others(names, source), path)
    return path


def _folder() -> Path:
    """Returns this user's folder of compiled files, which nobody else can write to."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "syrtos" / "libraries"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not this user's alone")
    return folder


def _names(jaxlib: Path) -> list[str]:
    """Returns the names that jaxlib looks up in the library."""
    with jaxlib.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text:
        return sorted({found.decode() for found in _NAMES.findall(text)})


def _code_of_others(names: list[str], source: str) -> str:
    """Returns C code of the functions and constants that the source lacks; constants are capitals."""
    lines = []
    for name in names:
        if re.search(rf"\b{name}\b *[=(]", source):
            continue
        if name.split("_", 1)[1].isupper():
            lines.append(f"const Handle {name}[2] = {{0}};")
        else:
            lines.append(f'int {name}() {{ return is_missing("{name}"); }}')
    return "\n".join(lines) + "\n"


def _compile(compiler: str, source: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made, code = Path(folder) / path.name, Path(folder) / "library.c"
        code.write_text(source)
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O2", "-w", "-o", str(made), str(code)],
            check=True,
            capture_output=True,
            timeout=_TIMEOUT,
        )
        made.replace(path)
