"""A run of a launcher of this machine, or of another that sees the same folder."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
from pathlib import Path

import pytest

from syrtos.engines.background import ENGINE
from syrtos.engines.launched_run import LaunchedRun
from syrtos.errors import ConfigurationError
from syrtos.launch.run_lock import Launcher, taking_run_lock


def ended(folder: Path, *end: object) -> None:
    (folder / "run.json").write_text(json.dumps({"end": end}))


def facts(folder: Path, launcher: Launcher) -> dict[str, str]:
    return {
        "run_dir": str(folder),
        **{name: str(value) for name, value in dataclasses.asdict(launcher).items()},
    }


@pytest.fixture
def gone() -> Launcher:
    """A launcher that has ended."""
    with subprocess.Popen(["sleep", "60"]) as process:
        launcher = Launcher.of(process.pid, in_background=True)
        process.kill()
    return launcher


def test_a_run_of_another_machine_is_no_failure(tmp_path: Path, gone: Launcher) -> None:
    elsewhere = dataclasses.replace(gone, host="node-7", machine="another")
    run = ENGINE.submitted_run(facts(tmp_path, elsewhere))
    assert run.state().phase == "running"
    assert "node-7" in run.state().why
    with pytest.raises(ConfigurationError, match="was started on node-7"):
        run.stop()
    ended(tmp_path, "FINISHED", 0)
    assert (run.state().phase, run.state().code) == ("finished", 0)
    run.stop()


def test_a_launcher_that_has_recorded_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        run = LaunchedRun(tmp_path, Launcher.of(process.pid, in_background=True))
        assert run.state().phase == "running"
        # also one that Ctrl-Z has suspended is stopped
        process.send_signal(signal.SIGSTOP)
        run.stop()
        process.wait(10)
    says = (
        f"The launcher ended without recording a result. See {tmp_path}/output.log. `syrtos resume"
        f" {tmp_path}` begins it anew, as it had no snapshot yet."
    )
    assert (run.state().phase, run.state().code, run.state().why) == ("failed", None, says)
    in_terminal = dataclasses.replace(run.launcher, in_background=False)
    assert f"See {tmp_path}/logs." in LaunchedRun(tmp_path, in_terminal).state().why


def test_the_end_of_an_earlier_run_is_not_that_of_a_launcher_which_came_to_nothing(
    tmp_path: Path, gone: Launcher
) -> None:
    with taking_run_lock(tmp_path):
        ended(tmp_path, "FINISHED", 0)
    assert "without recording" in LaunchedRun(tmp_path, gone).state().why


@pytest.mark.parametrize(
    "text",
    ["[]", "[" * 99999, "1" * 9999]
    + [f'{{"end": {end}}}' for end in ("5", "[]", "[1]", '["FINISHED", "x"]', '["NONE", 0]')],
)
def test_an_end_that_makes_no_sense_is_none(tmp_path: Path, gone: Launcher, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    assert "without recording" in LaunchedRun(tmp_path, gone).state().why


def test_the_code_of_a_run_that_goes_on_later_is_the_one_its_launcher_ended_with(
    tmp_path: Path, gone: Launcher
) -> None:
    run = LaunchedRun(tmp_path, gone)
    ended(tmp_path, "STOPPED", 143)
    assert run.state().code == 143
    snapshot = tmp_path / "snapshots" / "snapshot-3"
    snapshot.mkdir(parents=True)
    (snapshot / "part-0.safetensors").touch()
    assert run.state().code == 75
    ended(tmp_path, "STOPPED", 130)
    assert run.state().code == 130


def test_the_log_of_rank_0_is_that_of_the_newest_generation(tmp_path: Path, gone: Launcher) -> None:
    for folder in (tmp_path, tmp_path / "generation-2", tmp_path / "generation-10"):
        (folder / "logs").mkdir(parents=True)
        (folder / "logs" / "rank-0.log").write_text(f"of {folder.name}\n")
    in_terminal = dataclasses.replace(gone, in_background=False)
    for follow in (False, True):
        run = LaunchedRun(tmp_path, in_terminal)
        assert b"".join(run.output(follow)) == b"of generation-10\n"
    (tmp_path / "output.log").write_text("all of it")
    assert b"".join(LaunchedRun(tmp_path, gone).output(True)) == b"all of it"


def test_the_logs_of_generations_that_come_are_followed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        log = tmp_path / "logs" / "rank-0.log"
        log.parent.mkdir()
        log.write_text("one\n")
        run = LaunchedRun(tmp_path, Launcher.of(process.pid, in_background=False))
        pieces = run.output(follow=True)
        assert next(pieces) == b"one\n"
        log.write_text("one\nits last\n")
        later = tmp_path / "generation-2" / "logs"
        later.mkdir(parents=True)
        (later / "rank-0.log").write_text("two\n")
        assert [next(pieces), next(pieces)] == [b"its last\n", b"two\n"]
        process.kill()
        process.wait()
        assert list(pieces) == []


def test_the_end_is_that_of_the_record_where_the_request_is_damaged(
    tmp_path: Path, gone: Launcher
) -> None:
    (tmp_path / "run.json").write_text('{"end": ')
    (tmp_path / "ledger").mkdir()
    outcome = {"end": "STOPPED", "code": 130, "rank": None, "text": "was stopped"}
    (tmp_path / "ledger" / "launcher.json").write_text(json.dumps({"outcome": outcome}))
    state = LaunchedRun(tmp_path, gone).state()
    assert (state.phase, state.code) == ("stopped", 130)
    assert "resume" not in state.why
