"""Runs of `scripts/pausing.py`, which wait in their fourth epoch for a test to do something to them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import forking

SCRIPT = Path(__file__).parent / "scripts" / "pausing.py"
SYRTOS = Path(sys.executable).with_name("syrtos")


def wait_for(what: Callable[[], bool], seconds: float = 300.0) -> None:
    """Waits until something is so, which a busy machine may take long for."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it has not come"
        time.sleep(0.05)


def weights_of(text: str) -> str:
    """The digest of the weights in what a run has printed."""
    found = re.findall(r"weights (\w{64})", text)
    assert found, text
    return found[-1]


def undisturbed(workers: int, folder: Path) -> str:
    """The digest of the weights of a run of this machine that nothing is done to."""
    (folder / "go").touch()
    done = forking.run(forking.syrtos_run(folder / "run", workers, SCRIPT, folder), cwd=folder)
    assert done.returncode == 0, done.stderr
    return weights_of(done.stdout)
