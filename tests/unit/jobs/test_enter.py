"""A command that becomes one of an instance."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from syrtos.jobs.enter import Spec
from syrtos.settings import FOR_WORKERS


def test_a_command_does_not_take_itself_for_a_worker(tmp_path: Path) -> None:
    log = tmp_path / "log"
    spec = Spec(
        name="algo-1", root=str(tmp_path), isolated=False, folder=str(tmp_path), hosts="", mounts={}, fixed=(),
        variables={"OF_THE_JOB": "1"}, rank=0, output=str(log),
    )  # fmt: skip
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(dataclasses.asdict(spec)))
    env = {**os.environ, **dict.fromkeys(FOR_WORKERS, "x"), "PMI_RANK": "0"}
    subprocess.run(
        [sys.executable, "-m", "syrtos.jobs.enter", str(path), "env"],
        env=env,
        capture_output=True,
        timeout=60,
        check=True,
    )
    found = {line.partition("=")[0] for line in log.read_text().splitlines()}
    assert "OF_THE_JOB" in found
    assert not found & {*FOR_WORKERS, "PMI_RANK"}
