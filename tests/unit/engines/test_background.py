"""A run in the background of this machine, asked after here and on another machine that sees the same folder."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from syrtos.engines.background import ENGINE
from syrtos.errors import ConfigurationError
from syrtos.launch import events


def facts(folder: Path, process: subprocess.Popen[bytes], host: str = "") -> dict[str, str]:
    here = {
        "pid": str(process.pid),
        "machine": events.machine(),
        "born": str(events.born(process.pid)),
    }
    return {"run_dir": str(folder), "host": host or socket.gethostname(), **here}


def test_a_run_of_another_machine_is_no_failure(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        elsewhere = facts(tmp_path, process, "node-7") | {"machine": "another"}
    run = ENGINE.submitted_run(elsewhere)
    assert run.state().phase == "running"
    assert "node-7" in run.state().why
    with pytest.raises(ConfigurationError, match="was started on node-7"):
        run.stop()
    (tmp_path / "run.json").write_text(json.dumps({"end": ["FINISHED", 0]}))
    assert (run.state().phase, run.state().code) == ("finished", 0)
    run.stop()


def test_a_launcher_that_is_gone_without_a_word(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        run = ENGINE.submitted_run(facts(tmp_path, process))
        assert run.state().phase == "running"
        run.stop()
        process.wait(10)
        assert run.state().phase == "failed"
