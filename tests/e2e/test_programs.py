"""What a script finds under `syrtos run` is what it finds in plain Python: its arguments, modules, `__main__`, standard input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FACTS = """
import json, os, sys
import __main__
{helper}
facts = {{
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__, "spec": __spec__ and __spec__.name,
    "package": __package__, "main": vars(__main__) is globals(), "helper": helper.__file__, "input": sys.stdin.read(),
}}
with open(f"facts-{{os.environ.get('PMI_RANK', 'plain')}}", "w") as file:
    json.dump(facts, file)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    for name in ("helper.py", "package/helper.py", "package/__init__.py"):
        (tmp_path / name).touch()
    (tmp_path / "train.py").write_text(FACTS.format(helper="import helper"))
    (tmp_path / "package" / "train.py").write_text(FACTS.format(helper="from . import helper"))
    (tmp_path / "linked.py").symlink_to("package/../train.py")
    return tmp_path


def ran(folder: Path, command: list[str], data: str | None) -> None:
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        output, _ = process.communicate(data.encode() if data is not None else None, timeout=300)
    assert process.returncode == 0, output.decode()


def facts(folder: Path, name: str | int) -> Any:
    return json.loads((folder / f"facts-{name}").read_text())


@pytest.mark.parametrize(
    ("words", "plain"),
    [
        (["train.py", "-m", "x"], ["train.py", "-m", "x"]),
        (["linked.py"], ["linked.py"]),
        (["-m", "package.train", "--lr", "1"], ["-m", "package.train", "--lr", "1"]),
        (["python", "-u", "-m", "package.train"], ["-m", "package.train"]),
    ],
)
def test_a_worker_is_as_plain_python(folder: Path, words: list[str], plain: list[str]) -> None:
    data = "a line\nand another"
    ran(folder, [sys.executable, *plain], data)
    ran(folder, [sys.executable, "-m", "syrtos", "run", "-n", "2", *words], data)
    assert facts(folder, 0) == facts(folder, 1) == facts(folder, "plain")


def test_one_worker_without_a_launcher_runs_modules_too(folder: Path) -> None:
    ran(folder, [sys.executable, "-m", "package.train", "x"], "")
    plain = facts(folder, "plain")
    ran(folder, [sys.executable, "-m", "syrtos", "-m", "package.train", "x"], "")
    assert facts(folder, "plain") == plain


def test_a_pipe_that_never_ends_holds_up_nobody(folder: Path) -> None:
    (folder / "train.py").write_text("print('done')\n")
    read, write = os.pipe()
    command = [sys.executable, "-m", "syrtos", "run", "-n", "2", "train.py"]
    done = subprocess.run(
        command, cwd=folder, stdin=read, capture_output=True, text=True, timeout=300, check=False
    )
    os.close(read)
    os.close(write)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize(
    "starter",
    [["syrtos", "run", "-n", "2"], ["mpiexec", "-n", "2", "python", "-m", "syrtos"]],
    ids=["syrtos run", "mpiexec"],
)
@pytest.mark.parametrize("given", [None, "random", "17"])
def test_sets_of_texts_have_one_order_on_all_workers(
    tmp_path: Path, starter: list[str], given: str | None
) -> None:
    """A vocabulary that is made of a set would be another on each."""
    (tmp_path / "train.py").write_text(
        "import os\nwith open('order-' + os.environ['PMI_RANK'], 'w') as file: print(*{str(n) for n in range(99)}, file=file)\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    env |= {"PYTHONHASHSEED": given} if given else {}
    command = [str(Path(sys.executable).with_name(starter[0])), *starter[1:], "train.py"]
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    orders = [(tmp_path / f"order-{rank}").read_text().split() for rank in range(2)]
    plain = subprocess.run(
        [sys.executable, "-c", "print(*{str(n) for n in range(99)})"],
        env={**env, "PYTHONHASHSEED": given if given == "17" else "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert orders[0] == orders[1] == plain.stdout.split()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_printed_at_exit_is_in_the_log_once(tmp_path: Path, workers: int) -> None:
    (tmp_path / "train.py").write_text(
        "import atexit, sys\natexit.register(print, 'printed at exit')\n"
        "atexit.register(print, 'told at exit', file=sys.stderr)\n"
    )
    command = [sys.executable, "-m", "syrtos", "run", "-n", str(workers), "--run-dir", "run"]
    done = subprocess.run(
        [*command, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "printed at exit\n"
    assert done.stderr.count("told at exit") == 1
    for log in (tmp_path / "run" / "logs").glob("rank-*.log"):
        assert sorted(log.read_text().splitlines()) == ["printed at exit", "told at exit"]
