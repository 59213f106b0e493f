"""Files that a script writes by functions, on all ranks at once."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from backends import run

SYRTOS = Path(sys.executable).with_name("syrtos")
SCRIPT = Path(__file__).parent / "scripts" / "saving_checks.py"
CHECKS = (
    "functions",
    "tensorflow",
    "errors",
    "data_sets",
    "own_folders",
    "fetched",
    "unasked",
    "guarded",
)


class _Slow(http.server.BaseHTTPRequestHandler):
    """Sends a megabyte in pieces, and notes who asks."""

    def do_GET(self) -> None:
        asked: list[str] = self.server.asked  # type: ignore[attr-defined]
        asked.append(self.path)
        if "missing" in self.path:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(1 << 20))
        self.end_headers()
        for _ in range(16):
            self.wfile.write(bytes(1 << 16))
            time.sleep(0.05)

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the terminal quiet."""


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Slow)
    found.asked = []  # type: ignore[attr-defined]
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "checks"),
    [
        ("keras3", CHECKS),
        pytest.param("keras2", CHECKS, marks=pytest.mark.long),
        pytest.param("horovod", ("explicit",), marks=pytest.mark.long),
    ],
    ids=lambda v: str(v)[:7],
)
def test_files_are_written_once_and_read_whole(
    tmp_path: Path, server: http.server.ThreadingHTTPServer, kind: str, checks: tuple[str, ...]
) -> None:
    command = [
        str(SYRTOS),
        "run",
        "-n",
        "2",
        "--oversubscribe",
        "--run-dir",
        str(tmp_path / "run"),
        str(SCRIPT),
    ]
    url = f"http://127.0.0.1:{server.server_address[1]}/file"
    (tmp_path / "files").mkdir()
    done = subprocess.run(
        [*command, kind, str(tmp_path / "files"), url],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for name in checks:
        assert f"ok {name}" in done.stdout
    assert sorted(server.asked) == ["/file", "/file/missing"]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_backup_of_keras_2_is_gone_on_from_by_every_worker(tmp_path: Path) -> None:
    command = [str(SYRTOS), "run", "-n", "2", "--oversubscribe", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(
        [*command, str(SCRIPT), "keras2", str(tmp_path), "", "backup"],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "ok backup" in done.stdout


@pytest.mark.slow
def test_gradients_in_the_making_are_saved_with_the_model(tmp_path: Path) -> None:
    script = SCRIPT.with_name("backend_behaviours.py")
    done = run("tensorflow", 2, tmp_path, script, "resumed_with_accumulation", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
