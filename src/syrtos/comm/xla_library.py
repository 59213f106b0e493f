"""Compiles the library by which XLA exchanges through a process's MPI, once a machine.

jaxlib reads the library's path from the environment when it is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
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
# Of a library: the digests of what it is made for and of itself. A file that is replaced or removed
# while a process has it has "(deleted)" behind its name there.
_NAME = re.compile(r"(/.*/xla-mpi-[0-9a-f]{16}-[0-9a-f]{16}\.so)(?: \(deleted\))?")
_TIMEOUT = 20.0  # seconds for the compiler


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
        if path and (found := _NAME.fullmatch(path[0])):
            return Path(found[1])
    return None


def find() -> Path | None:
    """Returns the path of the library for the jaxlib at hand, which is compiled if it is not there.

    It is None where there is no jaxlib with MPI, no C compiler, no folder to write to, or where the
    library can't be loaded: jaxlib ends a process that it can't give its library.
    """
    spec = importlib.util.find_spec("jaxlib")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            jaxlib = Path(folder, _LIBRARY)
            if jaxlib.exists() and (path := _find_for(jaxlib)) is not None:
                ctypes.CDLL(str(path))
                return path
    return None


def _find_for(jaxlib: Path) -> Path | None:
    source, stat = _SOURCE.read_text(), jaxlib.stat()
    made_for = f"{source} {jaxlib} {stat.st_size} {stat.st_mtime_ns} {os.uname().machine}"
    start = f"xla-mpi-{_digest(made_for.encode())}"
    folder = _folder()
    for path in folder.glob(f"{start}-*.so"):
        if path.stem == f"{start}-{_digest(path.read_bytes())}":
            return path
        # Half a file, after a loss of power, would end the process that loads it.
        path.unlink(missing_ok=True)
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    # Only with a compiler: to read jaxlib takes half a second.
    if compiler is None or not (names := _names(jaxlib)):
        return None
    return _compile(compiler, source + _code_of_others(names, source), folder, start)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _folder() -> Path:
    """Returns this user's folder of compiled files, to which nobody else can write.

    Raises:
        PermissionError: others can.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "syrtos" / "libraries"
    if not folder.is_absolute():
        raise PermissionError(f"{folder} is no place of this user's")
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


def _compile(compiler: str, source: str, folder: Path, start: str) -> Path:
    """Compiles a library into ``folder``, under a name with ``start``, and returns its path."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        made, code = Path(place) / "library.so", Path(place) / "library.c"
        code.write_text(source)
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O2", "-w", "-o", str(made), str(code)],
            check=True,
            capture_output=True,
            timeout=_TIMEOUT,
        )
        path = folder / f"{start}-{_digest(made.read_bytes())}.so"
        # Another process may have compiled the same meanwhile, and have loaded it.
        with contextlib.suppress(FileExistsError):
            os.link(made, path)
    return path
