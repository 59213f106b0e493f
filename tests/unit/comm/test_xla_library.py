"""The library by which XLA exchanges through MPI: how it is compiled, found and offered."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from syrtos.comm import xla_library

pytestmark = pytest.mark.needs("jax")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(xla_library.VARIABLE, raising=False)
    return tmp_path / "syrtos" / "libraries"


def test_is_compiled_once_and_has_what_jaxlib_looks_up(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = xla_library.find()
    assert path is not None
    assert path.parent == cache
    assert cache.stat().st_mode & 0o777 == 0o700
    library = ctypes.CDLL(str(path))
    for name in ("MPIABI_Allreduce", "MPIABI_Win_create", "MPIABI_COMM_WORLD", "MPIABI_2INT"):
        assert hasattr(library, name), name
    # Another start needs no compiler.
    monkeypatch.setenv("PATH", "")
    assert xla_library.find() == path
    assert [each.name for each in cache.iterdir()] == [path.name]


def test_jaxlib_loads_it_and_the_script_s_processes_do_not_see_it(cache: Path) -> None:
    code = (
        "import os\n"
        "from syrtos.comm import xla_library\n"
        "assert xla_library.find_loaded() is None\n"
        "with xla_library.offering():\n"
        "    import jaxlib._jax\n"
        "print(xla_library.find_loaded(), os.environ.get(xla_library.VARIABLE))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(xla_library.find()), "None"], done.stderr


def test_processes_that_compile_at_once_load_one_library(cache: Path) -> None:
    code = (
        "from syrtos.comm import xla_library\n"
        "with xla_library.offering():\n"
        "    import jaxlib._jax\n"
        "print(xla_library.find_loaded())\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    found = [process.communicate(timeout=60)[0].strip() for process in started]
    assert found == [str(xla_library.find())] * 2
    assert [each.suffix for each in cache.iterdir()] == [".so"]


def test_a_damaged_library_is_compiled_anew(cache: Path) -> None:
    path = xla_library.find()
    assert path is not None
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:3000])
    again = xla_library.find()
    assert again is not None
    assert again.read_bytes() == whole


def test_nothing_is_offered_without_a_compiler(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert xla_library.variables({}) == {}


def test_a_folder_that_others_can_write_to_is_left_alone(cache: Path) -> None:
    cache.mkdir(parents=True)
    os.chmod(cache, 0o777)
    assert xla_library.variables({}) == {}
    assert not list(cache.iterdir())


def test_a_library_of_the_user_s_own_stays() -> None:
    assert xla_library.variables({xla_library.VARIABLE: "/opt/mpi.so"}) == {}
