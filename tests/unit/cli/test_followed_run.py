"""Who runs a run directory, and what `syrtos status`, `logs` and `stop` say of it."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from syrtos.cli import followed_run
from syrtos.engines.engine import RunState, Submitted
from syrtos.engines.launched_run import LaunchedRun
from syrtos.engines.slurm.submitted_job import SubmittedJob
from syrtos.errors import ConfigurationError
from syrtos.launch.run_lock import Launcher


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that takes the place of a launcher."""
    with subprocess.Popen(["sleep", "600"]) as started:
        yield started
        started.kill()


HELD: list[IO[str]] = []


def lock(folder: Path, launcher: Launcher) -> None:
    """Writes down the launcher, and holds the lock in its place until the process ends."""
    while HELD:
        HELD.pop().close()
    file = (folder / ".lock").open("w+")
    file.write(json.dumps(dataclasses.asdict(launcher)) + "\n")
    file.flush()
    if launcher.runs():
        fcntl.flock(file, fcntl.LOCK_EX)
        HELD.append(file)


def submit(folder: Path, launcher: Launcher) -> None:
    """Writes down the launcher as one that was started in the background."""
    facts = {name: str(value) for name, value in dataclasses.asdict(launcher).items()}
    kept = {"engine": "background", "facts": {"run_dir": str(folder), **facts}}
    (folder / "engine.json").write_text(json.dumps(kept))


def followed_launcher(folder: Path) -> Launcher | None:
    found = followed_run.find_followed(folder)
    assert isinstance(found, LaunchedRun)
    return found.launcher


def test_the_newest_launcher_is_followed(tmp_path: Path) -> None:
    running = Launcher.of(os.getpid(), in_background=True)
    old = dataclasses.replace(running, born=1)
    new = dataclasses.replace(old, since=old.since + 1)
    assert followed_run.find_followed(tmp_path) is None
    submit(tmp_path, old)
    assert followed_launcher(tmp_path) == old
    lock(tmp_path, new)  # it was resumed on a terminal
    assert followed_launcher(tmp_path) == new
    submit(tmp_path, dataclasses.replace(old, since=new.since + 1))  # and is about to take the lock
    assert followed_launcher(tmp_path) == dataclasses.replace(old, since=new.since + 1)
    lock(tmp_path, running)  # which is why the other is refused
    assert followed_launcher(tmp_path) == running
    lock(tmp_path, new)
    followed_run.forget_submission(tmp_path)
    followed_run.forget_submission(tmp_path)
    assert followed_launcher(tmp_path) == new


def test_a_job_of_an_engine_is_asked_whatever_its_launcher_has_written_down(tmp_path: Path) -> None:
    facts = {"job": "7", "run_dir": str(tmp_path)}
    followed_run.submit(tmp_path, "slurm", lambda: facts)
    lock(tmp_path, Launcher.of(os.getpid(), in_background=False))
    found = followed_run.find_followed(tmp_path)
    assert isinstance(found, SubmittedJob)
    assert found.name == "job 7"


def test_a_run_of_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match="There is no run in"):
        followed_run.print_status(tmp_path)
    for command in (followed_run.stop, lambda folder: followed_run.print_output(folder, False)):
        with pytest.raises(ConfigurationError, match="There is no run in"):
            command(tmp_path)
    (tmp_path / "run.json").write_text("{}\n")
    (tmp_path / "run.json").write_text('{"end": ["FAILED", 3]}')
    assert followed_run.print_status(tmp_path) == 3
    (tmp_path / "run.json").write_text('{"end": null}')
    assert followed_run.print_status(tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"Failed. `syrtos report {tmp_path}` says what happened.",
        f"The launcher ended without recording a result. See {tmp_path}/logs.",
    ]


def test_the_end_of_a_run_that_another_user_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.json").write_text('{"end": null}')
    monkeypatch.setattr(os, "access", lambda path, mode: path == tmp_path)  # root may read all
    with pytest.raises(ConfigurationError, match="which this user can't read: ask its owner"):
        followed_run.print_status(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for look in (followed_run.print_status, followed_run.stop):
        with pytest.raises(ConfigurationError, match="This user can't read the folder"):
            look(tmp_path)


def test_a_launcher_that_is_stopped_before_it_handles_signals(
    tmp_path: Path, process: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    submit(tmp_path, Launcher.of(process.pid, in_background=True))
    threading.Thread(target=process.wait).start()
    assert followed_run.stop(tmp_path) == 0
    assert followed_run.print_status(tmp_path) == 143
    assert "Stopped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (RunState("waiting", "no node has a GPU."), "Waiting: no node has a GPU."),
        (RunState("waiting"), "Waiting."),
        (RunState("running"), "Running."),
        (RunState("finished", code=0), "Finished."),
        (RunState("failed", "job 7 is out of memory.", 9), "Failed. Job 7 is out of memory."),
        (RunState("failed", "slurm knows nothing of job 7."), "Slurm knows nothing of job 7."),
    ],
)
def test_states_of_other_engines(tmp_path: Path, state: RunState, says: str) -> None:
    assert followed_run.describe_state(tmp_path, None, state) == says


def test_a_run_without_a_sign_of_life(
    tmp_path: Path, process: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Launcher.of(process.pid, in_background=True)
    lock(tmp_path, dataclasses.replace(launcher, since=time.time() - 1000))
    ledger = tmp_path / "ledger" / "rank-0.jsonl"
    ledger.parent.mkdir()
    ledger.touch()
    assert followed_run.print_status(tmp_path) == 0
    os.utime(ledger, (0, time.time() - 90))
    assert followed_run.print_status(tmp_path) == 0
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert followed_run.print_status(tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Running: no training step yet.",
        "Running, but no sign of life for 90 s.",
        f"Running, but launcher {process.pid} is suspended (`kill -CONT {process.pid}`).",
    ]


def test_a_launcher_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(followed_run, "_PATIENCE", 0.3)
    (tmp_path / "run.json").write_text('{"grace": 0.1}')
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"  # fmt: skip
    with subprocess.Popen(["python3", "-c", deaf], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        lock(tmp_path, Launcher.of(process.pid, in_background=True))
        assert followed_run.stop(tmp_path) == 1
        process.kill()
    said = capsys.readouterr().err
    assert said.startswith(f"syrtos: Stop signal sent to launcher {process.pid}; waiting…\n")
    assert f"launcher {process.pid} has not ended within 0 s" in said


@pytest.mark.parametrize("grace", ['"x"', "[]", "1" * 400, "NaN"])
def test_a_grace_that_makes_no_sense_is_the_usual_one(
    tmp_path: Path, process: subprocess.Popen[bytes], grace: str
) -> None:
    (tmp_path / "run.json").write_text(f'{{"grace": {grace}}}')
    lock(tmp_path, Launcher.of(process.pid, in_background=True))
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "rank-0.jsonl").touch()
    # it has recorded no end
    assert followed_run.stop(tmp_path) == 1


@pytest.mark.parametrize("text", ['{"engine": "slurm"}', '{"engine": "background", "facts": []}'])
def test_a_submission_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "engine.json").write_text(text)
    (tmp_path / ".lock").write_text("[" * 99999)
    assert followed_run.find_followed(tmp_path) is None


def test_a_second_stop_sends_no_second_signal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ending(Submitted):
        """A run that has ended when it is asked for the third time."""

        def __init__(self) -> None:
            self.asked = self.stopped = 0

        def state(self) -> RunState:
            self.asked += 1
            return RunState("running") if self.asked < 3 else RunState("finished", code=0)

        def output(self, follow: bool) -> Iterator[bytes]:
            yield b""

        def stop(self, at_once: bool = False) -> None:
            self.stopped += 1

    run = Ending()
    with followed_run._stopping(tmp_path) as is_first:
        assert is_first
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(followed_run, "find_followed", lambda run_dir: run)
            assert followed_run.stop(tmp_path) == 0
    assert run.stopped == 0
    assert capsys.readouterr().err.splitlines() == [
        "syrtos: Another `syrtos stop` has sent the run the signal; waiting…",
        "syrtos: Finished.",
    ]
