"""The same bytes for each worker."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from syrtos.launch.processes.standard_input import _Copies, copying_input, has_data

READ = "import sys\nfrom syrtos.launch.processes.standard_input import adopt\nadopt(sys.argv[1], int(sys.argv[2]))\n"


def worker(told: str, rank: int, code: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", READ + code, told, str(rank)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def test_a_pipe_is_copied_to_those_who_read_though_others_do_not() -> None:
    data = os.urandom(3_000_000)  # more than all pipes hold, and than is read ahead
    source, target = os.pipe()
    with copying_input(source, 3) as told:
        readers = [
            worker(told, rank, "sys.stdout.buffer.write(sys.stdin.buffer.read())")
            for rank in (0, 2)
        ]
        with os.fdopen(target, "wb") as stream:
            stream.write(data)
        assert [reader.communicate(timeout=300)[0] for reader in readers] == [data, data]


def test_nothing_of_a_pipe_is_written_to_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    source, target = os.pipe()
    with copying_input(source, 1) as told:
        os.write(target, b"password\n")
        assert worker(told, 0, "print(input())").communicate(timeout=300)[0] == b"password\n"
        os.close(target)


def test_bytes_that_all_have_read_are_dropped() -> None:
    source, target = os.pipe()
    pipes = [os.pipe() for _ in range(3)]
    copies = _Copies(source, [end for _, end in pipes])
    os.close(pipes[2][0])  # this one ends
    for _ in range(4):
        os.write(target, bytes(1 << 16))
        for end, _ in pipes[:2]:
            wanted = 1 << 16
            while wanted:
                wanted -= len(os.read(end, wanted))
    with copies._change:
        assert copies._change.wait_for(
            lambda: (copies._size, len(copies._held)) == (4 << 16, 0), 60
        )
    os.close(target)


def test_lines_arrive_while_the_stream_goes_on() -> None:
    source, target = os.pipe()
    with copying_input(source, 2) as told:
        os.write(target, b"one\n")
        readers = [
            worker(told, rank, "print(input(), flush=True); print(input())") for rank in range(2)
        ]
        first = [reader.stdout.readline() for reader in readers if reader.stdout]
        os.write(target, b"two\n")
        rest = [reader.communicate(timeout=300)[0] for reader in readers]
        os.close(target)
    assert (first, rest) == ([b"one\n"] * 2, [b"two\n"] * 2)


def test_a_file_is_read_from_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_text("skipped, rest")
    with path.open("rb") as file:
        os.lseek(file.fileno(), 8, os.SEEK_SET)
        assert has_data(file.fileno())
        with copying_input(file.fileno(), 2) as told:
            readers = [worker(told, rank, "print(sys.stdin.read(), end='')") for rank in range(2)]
            assert [reader.communicate(timeout=300)[0] for reader in readers] == [b" rest"] * 2
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 8, "it is still the caller's to read"


def test_nothing_is_an_empty_input_and_no_wait() -> None:
    with copying_input(None, 2) as told:
        output, _ = worker(told, 1, "print(repr(sys.stdin.read()))").communicate(timeout=300)
    assert output == b"''\n"


@pytest.mark.parametrize("data", [b"", b"x"])
def test_whether_a_pipe_holds_data(data: bytes) -> None:
    source, target = os.pipe()
    os.write(target, data)
    assert has_data(source) == bool(data)
    os.close(source)
    os.close(target)
