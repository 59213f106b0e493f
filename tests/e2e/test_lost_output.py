"""The exit code of commands whose output nobody reads: in processes of their own."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import sys
print("x" * 100_000, flush=True)
raise SystemExit(3)
"""


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def run(script: Path, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "syrtos", "run", "--run-dir", "run", *words, script]
    return subprocess.run(command, check=False, cwd=script.parent, text=True, timeout=120, **how)


@pytest.mark.parametrize("lost", [closed_pipe, full])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_run_ends_with_its_own_code_and_one_line_about_lost_output(
    script: Path, lost: Callable[[], int], stream: str
) -> None:
    descriptor = lost()
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: descriptor}
    ended = run(script, "--max-restarts", "0", **streams)
    os.close(descriptor)
    assert ended.returncode == 3
    words = {"stdout": "standard output", "stderr": "standard error"}[stream]
    said = ended.stderr if stream == "stdout" else ended.stdout
    assert said.count(f"syrtos: {words} (") == 1
    logs = script.parent / "run" / "logs"
    assert said.endswith(f"could not be written to: what workers have printed is in {logs}\n")
    assert "x" * 100_000 in (logs / "rank-0.log").read_text()


def test_a_run_without_any_stream_ends_with_its_own_code(script: Path) -> None:
    words = f'exec "{sys.executable}" -m syrtos run --run-dir run train.py <&- >&- 2>&-'
    ended = subprocess.run(["sh", "-c", words], check=False, cwd=script.parent, timeout=120)
    assert ended.returncode == 3
    assert "x" * 100_000 in (script.parent / "run" / "logs" / "rank-0.log").read_text()


def test_a_command_that_only_prints_ends_with_its_reader(tmp_path: Path) -> None:
    writer = closed_pipe()
    ended = subprocess.run(
        [sys.executable, "-m", "syrtos", "completion", "bash"],
        check=False,
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_script_that_closes_its_streams_ends_as_in_plain_python(script: Path) -> None:
    script.write_text("import sys\nsys.stderr = None\nprint('all of it')\nsys.stdout.close()\n")
    ended = run(script, capture_output=True)
    assert ended.returncode == 0, ended.stderr
    assert "all of it" in ended.stdout


def test_a_failure_is_named_where_the_script_has_closed_its_streams(script: Path) -> None:
    script.write_text(
        "import sys\nsys.stderr = None\nsys.stdout.close()\nraise ValueError('the reason')\n"
    )
    ended = run(script, "--max-restarts", "0", capture_output=True)
    assert ended.returncode == 1
    assert "ValueError: the reason" in ended.stderr


# -- output that nobody takes for a while ----------------------------------------------------------

MUCH = """
import pathlib, sys, time
for i in range(400):
    print(i, "x" * 1000, flush=True)
print("much", file=sys.stderr, flush=True)
pathlib.Path("went-on").touch()
while pathlib.Path("hold").exists():
    time.sleep(0.05)
print("the end", flush=True)
"""


def until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def held(script: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run that has printed more than fits into a pipe, and whose standard output nobody reads."""
    script.write_text(MUCH)
    (script.parent / "hold").touch()
    command = [sys.executable, "-m", "syrtos", "run", "-n", "1", "--run-dir", "run", script]
    with subprocess.Popen(
        command, cwd=script.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        until((script.parent / "went-on").exists)
        yield process
        process.kill()


def test_a_run_goes_on_while_nobody_takes_what_it_prints(
    script: Path, held: subprocess.Popen[bytes]
) -> None:
    (script.parent / "hold").unlink()
    # all of it waits for its reader, also after the workers have ended
    until(lambda: b"the end" in (script.parent / "run" / "logs" / "rank-0.log").read_bytes())
    with pytest.raises(subprocess.TimeoutExpired):
        held.wait(5)
    out, err = held.communicate(timeout=60)
    assert held.returncode == 0
    assert out.splitlines()[:400] == [f"{i} {'x' * 1000}".encode() for i in range(400)]
    assert b"the end" in out.splitlines()
    assert b"much" in err
    assert b"could not be written to" not in err


def test_a_run_is_stopped_while_nobody_takes_what_it_prints(
    script: Path, held: subprocess.Popen[bytes]
) -> None:
    stop = [sys.executable, "-m", "syrtos", "stop", "run"]
    stopped = subprocess.run(stop, check=False, cwd=script.parent, timeout=60, capture_output=True)
    assert stopped.returncode == 0, stopped.stderr
    held.wait(10)
    assert held.stderr is not None
    assert b"standard output (nobody has taken" in held.stderr.read()


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_ctrl_z_stops_the_workers_too_and_fg_continues_them(script: Path) -> None:
    script.write_text("import os\nopen('pid', 'w').write(str(os.getpid()))\n" + MUCH)
    folder = script.parent
    (folder / "hold").touch()
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execvp("bash", ["bash", "--norc", "-i"])
    shown = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):
            while piece := os.read(terminal, 65536):
                shown.extend(piece)

    threading.Thread(target=read, daemon=True).start()

    def state() -> str:
        return Path(f"/proc/{(folder / 'pid').read_text()}/stat").read_text().rpartition(")")[2][1]

    words = f"'{sys.executable}' -m syrtos run -n 1 --run-dir run train.py; echo CODE $?\n"
    os.write(terminal, words.encode())
    until((folder / "went-on").exists)
    os.write(terminal, b"\x1a")
    until(lambda: state() == "T")
    (folder / "hold").unlink()
    os.write(terminal, b"fg; echo CODE $?\n")
    until(lambda: bool(re.search(rb"CODE 0\r\n", shown)))
    assert b"the end" in shown
    os.write(terminal, b"exit\n")
    os.waitpid(process, 0)


def test_a_worker_that_is_killed_has_printed_its_lines(script: Path) -> None:
    """In a worker that was forked and in one that is a new interpreter."""
    script.write_text("import numpy\nprint('said')\nimport os\nos.kill(os.getpid(), 9)\n")
    for new in ("", "1"):
        env = {**os.environ, "SYRTOS_NEW_INTERPRETERS": new} if new else None
        ended = run(script, "-n", "2", "--max-restarts", "0", capture_output=True, env=env)
        assert ended.returncode
        logs = script.parent / "run" / "logs"
        found = [(logs / f"rank-{rank}.log").read_text() for rank in (0, 1)]
        assert any(text.startswith("said\n") for text in found), ended.stderr


def test_a_script_may_wait_for_its_children_and_end_them(script: Path) -> None:
    script.write_text(
        "import os, psutil\n"
        "if os.fork() == 0:\n    os._exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "for child in psutil.Process().children(recursive=True):\n    child.kill()\n"
        "try:\n    os.wait()\nexcept ChildProcessError:\n    print('no child')\n"
    )
    ended = run(script, "-n", "1", capture_output=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[:2] == ["3", "no child"]
