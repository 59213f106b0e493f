"""Where the workers of the next generation come from."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from syrtos.launch.process_engine import read_vitals
from syrtos.launch.processes.standby import Imports, Standby
from syrtos.launch.processes.zygote_process import EarlyStart, ZygoteProcess

NOTHING = Imports({}, {})
CODE = "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(str(os.getppid()))\n"


@pytest.fixture
def standby() -> Iterator[Standby]:
    with contextlib.closing(Standby()) as found:
        yield found


def parent_of_started(standby: Standby, folder: Path, *flags: str) -> int:
    """The parent of a process that it has started."""
    (folder / "module.py").write_text(CODE)
    command = (sys.executable, *flags, "-m", "module", str(folder / "parent"))
    env = {"PYTHONPATH": str(folder)}
    with open(os.devnull, "rb") as nothing:
        process = standby.start(command, env, nothing.fileno(), (nothing.fileno(), 1, 2))
    assert process.wait(60) == 0
    return int((folder / "parent").read_text())


def ready(standby: Standby) -> int:
    standby.prepare(NOTHING, {"PATH": os.environ["PATH"]})
    assert standby._zygote is not None
    while not standby._zygote.is_ready():
        time.sleep(0.01)
    return standby._zygote.process.pid


def test_new_interpreters_until_one_is_ready(
    standby: Standby, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parent_of_started(standby, tmp_path) == os.getpid()
    pid = ready(standby)
    assert parent_of_started(standby, tmp_path) == pid


def test_flags_of_the_interpreter_need_a_new_one(standby: Standby, tmp_path: Path) -> None:
    ready(standby)
    assert parent_of_started(standby, tmp_path, "-u") == os.getpid()


def test_one_that_has_died_is_replaced_when_the_workers_have_imported_again(
    standby: Standby, tmp_path: Path
) -> None:
    first = ready(standby)
    assert ready(standby) == first
    assert standby._zygote is not None
    os.kill(standby._zygote.process.pid, signal.SIGKILL)
    standby._zygote.process.wait()
    assert parent_of_started(standby, tmp_path) == os.getpid()
    assert ready(standby) != first


def test_one_that_does_not_answer_is_given_up(
    standby: Standby,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("syrtos.launch.processes.standby._PATIENCE", 0.1)
    os.kill(ready(standby), signal.SIGSTOP)
    assert parent_of_started(standby, tmp_path) == os.getpid()
    assert "has not answered in 0.1 s" in capfd.readouterr().err
    assert standby._zygote is None


def test_one_that_is_stopped_is_given_up_without_a_wait_in_between(
    standby: Standby, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An agent has signs of life to give meanwhile."""
    pid = ready(standby)
    os.kill(pid, signal.SIGSTOP)
    while (vitals := read_vitals(pid)) and vitals.state != "T":
        time.sleep(0.01)
    assert not standby.is_settled()
    monkeypatch.setattr("syrtos.launch.processes.standby._PATIENCE", 0.0)
    assert standby.is_settled()
    assert "was stopped for 0 s" in capfd.readouterr().err
    assert standby._zygote is None


def test_one_that_goes_on_is_not_given_up(standby: Standby) -> None:
    pid = ready(standby)
    os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGCONT)
    standby.settle(lambda: False)
    assert standby._zygote is not None


def test_one_that_still_imports_holds_up_no_end(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(600)")
    with contextlib.closing(Standby()) as standby:
        standby.prepare(Imports({"slow": ""}, {}), {"PYTHONPATH": str(tmp_path)})


def test_another_file_of_a_module_is_not_what_the_workers_have(standby: Standby) -> None:
    standby.prepare(Imports({"json": "/my/json.py"}, {}), {})
    assert standby._zygote is not None
    standby._zygote.process.wait()
    assert not standby._zygote.is_ready()
    assert "and was /my/json.py" in standby._zygote.printed_text


def test_variables_are_those_of_the_import(
    standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may have removed some that the run began with."""
    given: list[dict[str, str]] = []
    monkeypatch.setattr(
        "syrtos.launch.processes.standby.Zygote",
        lambda modules, env, **how: given.append(env) or OVER,
    )
    env = {
        "KERAS_BACKEND": "jax",
        "HOME": "/h",
        "CUDA_VISIBLE_DEVICES": "1",
        "SYRTOS_SECRET": "s3cr3t",
    }
    standby.prepare(Imports({}, {"TF_ENABLE_ONEDNN_OPTS": "0"}), env)
    assert given == [{"TF_ENABLE_ONEDNN_OPTS": "0", "HOME": "/h", "CUDA_VISIBLE_DEVICES": "1"}]


class _Over:
    def lives(self) -> bool:
        return False

    def close(self) -> None:
        pass


OVER = _Over()


# -- the first generation ----------------------------------------------------------------------------

WORKER = """\
import json, os, pathlib, sys
from syrtos.launch import resources
sys.path.insert(0, os.path.dirname(sys.argv[1]))
resources.apply(os.environ)
was = "keras" in sys.modules
exec(pathlib.Path(sys.argv[1]).read_text())
facts = {"parent": os.getppid(), "was": was, "backend": keras.backend, "argv": sys.orig_argv[1:3]}
pathlib.Path(sys.argv[1]).with_suffix(".json").write_text(json.dumps(facts))
"""


_SEVERAL_CORES = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="on one core any number of workers has one thread each"
)


def started(
    standby: Standby, folder: Path, script: str, env: dict[str, str] | None = None, workers: int = 1
) -> dict[str, object]:
    """What a process says that stands for a worker, of which `syrtos.worker` and Keras are little modules."""
    (folder / "keras.py").write_text(
        "import os\nbackend = os.environ.get('KERAS_BACKEND')\nos.environ['IMPORTED'] = '1'"
    )
    (folder / "worker.py").write_text(WORKER)
    (folder / "train.py").write_text(script)
    command = (sys.executable, "-m", "worker", str(folder / "train.py"))
    place = {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": str(workers)}
    variables = {
        "PYTHONPATH": str(folder),
        "PATH": os.environ["PATH"],
        "OMP_NUM_THREADS": "1",
        **place,
        **(env or {}),
    }
    standby.begin(command, variables, workers)
    standby.settle(lambda: False)
    with open(os.devnull, "rb") as nothing:
        process = standby.start(command, variables, nothing.fileno(), (nothing.fileno(), 1, 2))
    assert process.wait(60) == 0
    return json.loads((folder / "train.json").read_text())


def test_workers_are_forked_from_what_has_imported_for_them(
    standby: Standby, tmp_path: Path
) -> None:
    script = "import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras"
    facts = started(standby, tmp_path, script)
    assert standby._zygote is not None
    assert facts["parent"] == standby._zygote.process.pid
    assert facts["backend"] == "jax"
    assert not facts["was"]  # until the script imports it
    assert facts["argv"] == ["-m", "worker"]


def test_scripts_that_can_not_be_understood_have_interpreters_of_their_own(
    standby: Standby, tmp_path: Path
) -> None:
    facts = started(
        standby, tmp_path, "import os\nos.environ.update(KERAS_BACKEND='jax')\nimport keras"
    )
    assert facts["parent"] == os.getpid()
    assert facts["backend"] == "jax"


def test_new_interpreters_can_be_asked_for(standby: Standby, tmp_path: Path) -> None:
    facts = started(standby, tmp_path, "import keras", {"SYRTOS_NEW_INTERPRETERS": "1"})
    assert facts["parent"] == os.getpid()


@_SEVERAL_CORES
def test_workers_of_another_number_are_forked_from_another_import(
    standby: Standby, tmp_path: Path
) -> None:
    one = started(standby, tmp_path, "import keras")
    assert started(standby, tmp_path, "import keras")["parent"] == one["parent"] != os.getpid()
    # As after a resize: each of more workers has fewer threads.
    two = started(standby, tmp_path, "import keras", workers=2)
    assert two["parent"] not in (one["parent"], os.getpid())
    assert not Path(f"/proc/{one['parent']}").exists()


@_SEVERAL_CORES
def test_what_stands_by_for_another_number_of_workers_is_ended(
    standby: Standby, tmp_path: Path
) -> None:
    by_itself = "import os\nos.environ.update(KERAS_BACKEND='jax')\nimport keras"
    assert started(standby, tmp_path, by_itself)["parent"] == os.getpid()
    standby.prepare(Imports({"json": ""}, {}), {"PATH": os.environ["PATH"]})
    assert standby._zygote is not None
    assert started(standby, tmp_path, by_itself, workers=2)["parent"] == os.getpid()
    assert standby._zygote is None


def test_an_import_that_fails_is_left_to_the_script(standby: Standby, tmp_path: Path) -> None:
    script = "import keras\ntry:\n    import sklearn.no_such_module\nexcept ImportError:\n    pass"
    assert (
        started(standby, tmp_path, script)["parent"] != os.getpid()
    )  # a library, which the script does without
    (tmp_path / "tf_keras.py").write_text("1 / 0")
    with contextlib.closing(Standby()) as another:
        script = "import keras\ntry:\n    import tf_keras\nexcept ZeroDivisionError:\n    pass"
        assert started(another, tmp_path, script)["parent"] == os.getpid()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "import os\ne = os.environ\ne['KERAS_BACKEND'] = 'jax'\nimport keras",
            "KERAS_BACKEND is 'jax' where the script imports keras; ",
        ),
        (
            "import sys\nsys.path.insert(0, sys.path[0] + '/other')\nimport keras",
            "the script imports keras from ",
        ),
        ("import os\ne = os.environ\ne['UNKNOWN'] = 'x'\nimport keras", "UNKNOWN is 'x' where"),
    ],
)
def test_an_import_in_another_environment_is_refused(
    standby: Standby, tmp_path: Path, script: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "keras.py").write_text("backend = 'other'")
    with pytest.raises(AssertionError):
        started(standby, tmp_path, script)
    assert f"ImportedOtherwise: {why}" in capfd.readouterr().err


def test_what_an_import_prints_is_shown_once(
    standby: Standby, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tf_keras.py").write_text("import sys; print('deprecated', file=sys.stderr)")
    started(standby, tmp_path, "import tf_keras, keras")
    assert standby.is_settled()
    assert capfd.readouterr().err.count("deprecated") == 1


def test_a_signal_ends_the_wait(standby: Standby, tmp_path: Path) -> None:
    (tmp_path / "keras.py").write_text("import time; time.sleep(600)")
    (tmp_path / "train.py").write_text("import keras")
    standby.begin(
        (sys.executable, "-m", "worker", str(tmp_path / "train.py")),
        {"PYTHONPATH": str(tmp_path)},
        2,
    )
    assert not standby.is_settled()
    standby.settle(lambda: True)


# -- an interpreter that was started before the order was known -----------------------------------------

BY_ITSELF = "import os\nos.environ.update(KERAS_BACKEND='jax')\nimport keras"


def early(folder: Path, **variables: str) -> ZygoteProcess:
    """An interpreter as the command line starts it."""
    env = {"PYTHONPATH": str(folder), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    return ZygoteProcess({**env, **variables})


@pytest.mark.parametrize("script", ["import keras", BY_ITSELF])
def test_workers_are_forked_from_one_that_was_started_early(tmp_path: Path, script: str) -> None:
    process = early(tmp_path)
    with contextlib.closing(Standby(EarlyStart(process))) as standby:
        facts = started(standby, tmp_path, script)
    assert facts["parent"] == process.pid
    assert not facts["was"]
    assert not Path(f"/proc/{process.pid}").exists()


@pytest.mark.parametrize(
    ("script", "variables"),
    [
        (BY_ITSELF, {"OMP_NUM_THREADS": "3"}),
        (BY_ITSELF, {"PYTHONHASHSEED": "7"}),
        (BY_ITSELF, {"COVERAGE_PROCESS_START": "x"}),
        ("import keras", {"SYRTOS_NEW_INTERPRETERS": "1"}),
    ],
)
def test_one_that_has_read_another_environment_is_ended(
    tmp_path: Path, script: str, variables: dict[str, str]
) -> None:
    process = early(tmp_path)
    with contextlib.closing(Standby(EarlyStart(process))) as standby:
        assert started(standby, tmp_path, script, variables)["parent"] == os.getpid()
        assert not Path(f"/proc/{process.pid}").exists()


def test_one_without_frameworks_is_replaced_when_the_workers_have_imported(tmp_path: Path) -> None:
    process = early(tmp_path)
    with contextlib.closing(Standby(EarlyStart(process))) as standby:
        assert started(standby, tmp_path, BY_ITSELF)["parent"] == process.pid
        standby.prepare(
            Imports({"json": ""}, {}), {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
        )
        # The workers that run are its children.
        assert Path(f"/proc/{process.pid}").exists()
        assert standby._zygote is not None
        while not standby._zygote.is_ready():
            time.sleep(0.01)
        assert parent_of_started(standby, tmp_path) == standby._zygote.process.pid


def test_one_that_never_has_an_order_ends_with_its_starter(tmp_path: Path) -> None:
    code = "import os\nfrom syrtos.launch.processes.zygote_process import EarlyStart, ZygoteProcess\nprint(ZygoteProcess(os.environ).pid)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    end = time.monotonic() + 60
    while Path(f"/proc/{said.stdout.strip()}").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
