"""The process that forks others: it can be asked as soon as it is found."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from syrtos.errors import LaunchError
from syrtos.launch.processes import zygote
from syrtos.launch.processes.forking import Command, Family, Forked, Zygote

ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
def empty() -> Iterator[Zygote]:
    """A zygote that has imported nothing."""
    found = Zygote({}, ENV)
    found.wait()
    yield found
    found.close()


def test_a_path_that_exists_can_be_connected_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = str(tmp_path / "socket")
    found: list[bool] = []

    class Listener(zygote.socket.socket):
        def listen(self, backlog: int = 0, /) -> None:
            found.append(os.path.exists(path))
            super().listen(backlog)

    class Served(Exception):
        pass

    def serve(_: object) -> None:
        raise Served

    monkeypatch.setattr(zygote.socket, "socket", Listener)
    monkeypatch.setattr(zygote, "ForkServer", serve)
    monkeypatch.setattr(zygote.gc, "freeze", lambda: None)
    monkeypatch.setattr(sys, "path", ["its folder", *sys.path])
    with pytest.raises(Served):
        zygote.main({"path": path, "modules": {}})
    assert found == [False]
    assert os.path.exists(path)


def test_processes_are_forked(empty: Zygote, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(3)")
    family = Family(empty.path)
    pid = family.fork(Command((str(script),), ENV), (0, 1, 2))
    assert family.wait(60) == (pid, 3)
    family.close()


def test_no_answer_is_an_error(empty: Zygote) -> None:
    family = Family(empty.path, patience=0.1)
    os.kill(empty.process.pid, signal.SIGSTOP)
    with pytest.raises(LaunchError, match=r"has not answered in 0\.1 s"):
        family.fork(Command(("script.py",), ENV), (0, 1, 2))
    os.kill(empty.process.pid, signal.SIGCONT)
    family.close()


def test_one_process_as_a_popen(empty: Zygote) -> None:
    code = "import os, sys; os.write(1, os.environ['SAID'].encode()); sys.exit(3)"
    with open(os.devnull, "rb") as nothing:
        read, write = os.pipe()
        folder = Path(empty.path).parent
        (folder / "script.py").write_text(code)
        process = Forked(
            empty.path,
            Command([str(folder / "script.py")], {"SAID": "x"}),
            (nothing.fileno(), write, 2),
        )
        os.close(write)
    assert process.wait(60) == 3
    with os.fdopen(read) as said:
        assert said.read() == "x"


def test_a_process_ends_with_the_one_that_has_forked_it(empty: Zygote, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time; time.sleep(600)")
    process = Forked(empty.path, Command([str(tmp_path / "script.py")], ENV), (0, 1, 2))
    os.kill(empty.process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL


def test_one_that_can_not_import_says_why() -> None:
    broken = Zygote({"no_such_module": ""}, ENV)
    broken.process.wait()
    with pytest.raises(LaunchError, match="No module named 'no_such_module'"):
        broken.wait()
    assert not broken.is_ready()
    broken.close()


def test_its_folder_goes_with_it() -> None:
    """Also where the process that has started it was killed, and only its standard input ends."""
    found = Zygote({}, ENV)
    found.wait()
    stdin = found.process._process.stdin
    assert stdin is not None
    stdin.close()
    found.process.wait()
    assert not Path(found.path).parent.exists()
    found.close()


def written_by(zygote_: Zygote, folder: Path, script: str, stdin: bytes = b"") -> str:
    """What a forked script prints."""
    (folder / "script.py").write_text(script)
    (folder / "in").write_bytes(stdin)
    with (folder / "in").open("rb") as given, (folder / "out").open("wb") as out:
        process = Forked(
            zygote_.path,
            Command([str(folder / "script.py")], ENV),
            (given.fileno(), out.fileno(), 2),
        )
        assert process.wait(60) == 0
    return (folder / "out").read_text()


def test_a_file_that_a_script_leaves_open_is_complete(empty: Zygote, tmp_path: Path) -> None:
    """Those of functions, and of objects that refer to themselves, are closed when the interpreter ends."""
    script = f"""
class Circle:
    def __init__(self):
        self.itself, self.file = self, open({str(tmp_path / "circle")!r}, "w")
    def __del__(self):
        self.file.close()
Circle().file.write("abcd")
file = open({str(tmp_path / "function")!r}, "w")
def write():
    file.write("abcd")
write()
import atexit, sys
atexit.register(lambda: print(sys.modules["__main__"].__file__))
"""
    assert written_by(empty, tmp_path, script) == f"{tmp_path / 'script.py'}\n"
    assert (tmp_path / "circle").read_text() == (tmp_path / "function").read_text() == "abcd"


def test_what_is_logged_at_the_end_is_no_traceback(tmp_path: Path) -> None:
    """absl's handler closes its stream at the end, unless it is `sys.stderr`; TensorFlow's has the same stream."""
    script = tmp_path / "script.py"
    script.write_text(
        "import logging, sys\nfrom absl import logging as absl\n"
        "handler = absl.get_absl_handler().python_handler\n"
        "print(handler.stream is sys.stderr, file=open('said', 'w'))\n"
    )
    found = Zygote({"absl.logging": ""}, ENV)
    found.wait()
    try:
        ended = Forked(found.path, Command((str(script),), ENV, str(tmp_path)), (0, 1, 2))
        assert ended.wait(60) == 0
    finally:
        found.close()
    assert (tmp_path / "said").read_text() == "True\n"


def test_standard_input_can_be_sought_as_in_a_new_interpreter(
    empty: Zygote, tmp_path: Path
) -> None:
    script = "import sys; sys.stdin.read(); sys.stdin.seek(0); print(sys.stdin.read())"
    assert written_by(empty, tmp_path, script, b"hello") == "hello\n"


def test_modules_and_packages_are_run(empty: Zygote, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for file in ("package/__init__.py", "package/inner.py", "package/__main__.py", "module.py"):
        (tmp_path / file).write_text(
            "import sys\nif __name__ == '__main__': print(__package__, __spec__.name, *sys.argv)"
        )
    said = {}
    for name in ("package", "package.inner", "module"):
        with (tmp_path / "out").open("wb") as out:
            process = Forked(
                empty.path, Command(["-m", name, "x"], ENV, str(tmp_path)), (0, out.fileno(), 2)
            )
            assert process.wait(60) == 0
        said[name] = (tmp_path / "out").read_text().split()
    assert said == {
        "package": ["package", "package.__main__", str(tmp_path / "package" / "__main__.py"), "x"],
        "package.inner": ["package", "package.inner", str(tmp_path / "package" / "inner.py"), "x"],
        "module": ["module", str(tmp_path / "module.py"), "x"],
    }


def stopped(zygote_: Zygote) -> None:
    os.kill(zygote_.process.pid, signal.SIGSTOP)
    while (
        Path(f"/proc/{zygote_.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"
    ):
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("os._exit(3)", 3),
        ("sys.exit()", 0),
        ("os.abort()", -signal.SIGABRT),
        ("threading.Thread(target=os._exit, args=(4,)).start(); time.sleep(600)", 4),
    ],
)
def test_an_end_is_known_where_the_zygote_is_stopped(
    empty: Zygote, tmp_path: Path, ending: str, code: int
) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "script.py").write_text(
        f"import os, sys, threading, time\nwhile not os.path.exists({str(begun)!r}):"
        f" time.sleep(0.01)\n{ending}"
    )
    process = Forked(empty.path, Command([str(tmp_path / "script.py")], ENV), (0, 1, 2))
    stopped(empty)
    with pytest.raises(TimeoutError):
        process.wait(0.01)
    begun.touch()
    gone = os.pidfd_open(process.pid)
    assert select.select([gone], [], [], 60.0)[0]
    os.close(gone)
    assert process.wait(0.01) == code


def test_a_signal_ends_the_wait_for_a_fork(empty: Zygote) -> None:
    stopped(empty)
    family = Family(empty.path, patience=600.0, over=lambda: True)
    with pytest.raises(LaunchError, match="has not answered"):
        family.fork(Command(("script.py",), ENV), (0, 1, 2))
    family.close()
