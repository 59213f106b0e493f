"""An engine of another package: `syrtos run --on toy` finds it by its entry point, and nothing in syrtos knows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Two "hosts" of this machine, reached by a shell.
ENGINE = """
import contextlib
from syrtos.engines.engine import Engine, Reached
from syrtos.launch.spec import Host

class Toy(Engine):
    name = "toy"
    settings = {"shell": "the program that starts agents"}

    def reach(self, wanted):
        wanted.check(self.settings, self.name)
        hosts = (Host("toy-a", 1), Host("toy-b", 1))
        return contextlib.nullcontext(Reached(hosts, wanted.values["shell"], is_for_all=True))

ENGINE = Toy()
"""
REACH = """#!/bin/sh
# `reach HOST COMMAND...`
shift
exec sh -c "$*"
"""
SCRIPT = """
import syrtos
syrtos.init()
print(f"rank {syrtos.rank()} of {syrtos.size()}", flush=True)
"""


def test_an_entry_point_adds_an_engine(tmp_path: Path) -> None:
    facts = tmp_path / "toy-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[syrtos.engines]\ntoy = toy_engine:ENGINE\n")
    (tmp_path / "toy_engine.py").write_text(ENGINE)
    (tmp_path / "train.py").write_text(SCRIPT)
    reach = tmp_path / "reach"
    reach.write_text(REACH)
    reach.chmod(0o755)

    def syrtos(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "syrtos", "run", "--on", "toy", *words, "train.py"]
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)

    ended = syrtos("--with", f"shell={reach}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "rank 0 of 2\n"  # the log of rank 1 has what that prints
    refused = syrtos("--with", f"shel={reach}")
    assert refused.returncode != 0
    assert "Did you mean `shell`?" in refused.stderr
