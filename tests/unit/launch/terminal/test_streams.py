"""Standard output and error that can't be written to, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BEGIN = """
import fcntl, os, sys, threading
from syrtos.launch.terminal import streams
streams.make_unfailing(errors="backslashreplace")
"""


def run(text: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-P", "-c", BEGIN + text]
    return subprocess.run(command, check=False, timeout=60, **how)


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


LOST = "print('a' * 9000, flush=True); print('b', file=sys.stderr); streams.intact().write(streams.describe_loss())"


def test_a_reader_that_is_gone_costs_nothing() -> None:
    writer = closed_pipe()
    ended = run(LOST, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert ended.returncode == 0
    assert ended.stderr == b"b\nstandard output (Broken pipe)"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named_on_the_stream_that_is_left() -> None:
    with open("/dev/full", "wb") as full:
        ended = run(LOST, stdout=subprocess.PIPE, stderr=full)
    assert ended.returncode == 0
    assert ended.stdout == b"a" * 9000 + b"\nstandard error (No space left on device)"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_nobody_hears_that_both_are_lost(unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        ended = run(
            "print('a', flush=True); print('b', file=sys.stderr);"
            "sys.exit(7 if streams.intact() is None else 1)",
            stdout=full,
            stderr=full,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert ended.returncode == 7


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_file_does_not_get_the_number_of_a_closed_stream(tmp_path: Path, closed: str) -> None:
    text = (
        BEGIN
        + f"kept = open({str(tmp_path / 'kept')!r}, 'w'); assert kept.fileno() > 2;"
        + "print('out'); print('err', file=sys.stderr); os.write(2, b'C'); sys.exit(5)"
    )
    (tmp_path / "program.py").write_text(text)
    ended = subprocess.run(
        ["sh", "-c", f'exec "$0" -P program.py {closed}', sys.executable],
        check=False,
        cwd=tmp_path,
        timeout=60,
    )
    assert ended.returncode == 5
    assert (tmp_path / "kept").read_text() == ""


def test_a_character_that_the_encoding_lacks_is_written_otherwise() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = run("print('é\\ud800 1')", stdout=subprocess.PIPE, env=env)
    assert (ended.returncode, ended.stdout) == (0, b"\\xe9\\ud800 1\n")


def test_a_pipe_that_does_not_wait_gets_everything() -> None:
    text = "fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK); print('a' * 1_000_000)"
    ended = run(text, stdout=subprocess.PIPE)
    assert (ended.returncode, len(ended.stdout)) == (0, 1_000_001)


def test_what_is_printed_after_an_error_in_the_background_is_shown() -> None:
    ended = run(
        "try:\n    with streams.in_background():\n        print('before')\n        raise ValueError\n"
        "except ValueError:\n    print('after')\n",
        stdout=subprocess.PIPE,
    )
    assert ended.stdout == b"before\nafter\n"


def test_both_streams_of_one_file_keep_their_order() -> None:
    ended = run(
        "with streams.in_background():\n    for i in range(50):\n"
        "        print(i, flush=True)\n        print(i, file=sys.stderr, flush=True)\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert ended.stdout.split() == [b"%d" % (i // 2) for i in range(100)]
