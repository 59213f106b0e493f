"""Databases of jobs: SQLite, and a server of Postgres of the test's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
_WHY_NOT = (
    "needs Debian's postgresql"
    if not _BINARIES
    else "needs root and runuser, to become postgres: it does not run as root"
)
_CAN = bool(_BINARIES) and os.geteuid() == 0 and shutil.which("runuser") is not None


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The URL of a database server of our own."""
    binaries = _BINARIES[-1].parent
    folder = Path(tempfile.mkdtemp(prefix="syrtos-postgres-"))
    as_user = ["runuser", "-u", "postgres", "--"]
    shutil.chown(folder, "postgres")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    data = folder / "data"
    subprocess.run(
        [
            *as_user,
            binaries / "initdb",
            "-D",
            data,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    process = subprocess.Popen(
        [
            *as_user,
            binaries / "postgres",
            "-D",
            data,
            "-p",
            str(port),
            "-h",
            "127.0.0.1",
            "-k",
            folder,
            "-F",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )
    try:
        deadline = time.monotonic() + 30
        while subprocess.run(
            [binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)], check=False
        ).returncode:
            assert time.monotonic() < deadline, "Postgres did not start"
            time.sleep(0.1)
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        server = (
            int((data / "postmaster.pid").read_text().splitlines()[0])
            if (data / "postmaster.pid").exists()
            else 0
        )
        if server:
            os.kill(server, 3)  # SIGQUIT: at once
        process.wait(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres() -> Callable[[], contextlib.AbstractContextManager[str]]:
    """Starts a database server of the test's own, and ends it."""
    if not _CAN:
        pytest.skip(_WHY_NOT)
    return server


@pytest.fixture(
    scope="module",
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.skipif(not _CAN, reason=_WHY_NOT)),
    ],
)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('store') / 'jobs.sqlite'}"
        return
    with server() as found:
        yield found
