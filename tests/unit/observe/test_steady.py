"""Moments by which a run is measured go on evenly while somebody sets the clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from syrtos.observe import steady
from syrtos.observe.ledger import Ledger, launching
from syrtos.run_dir import RunDir
from syrtos.settings import MOMENT_VARIABLE

DAY = 86400.0


@pytest.fixture(autouse=True)
def beginning() -> Iterator[None]:
    """A process that has not asked for a moment yet."""
    steady._offset.cache_clear()
    yield
    steady._offset.cache_clear()


@pytest.fixture(params=[DAY, -DAY])
def set_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is set by a day, after a first moment was asked for."""
    steady.now()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + request.param)


def test_a_run_begins_at_the_wall_clocks_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MOMENT_VARIABLE, raising=False)
    assert abs(steady.now() - time.time()) < 5.0


@pytest.mark.usefixtures("set_clock")
def test_the_clock_may_be_set_while_a_run_is_recorded(tmp_path: Path) -> None:
    began = steady.now()
    with launching(tmp_path, began):
        ledger = Ledger()
        ledger.open(str(tmp_path), 0)
        ledger.epoch(epoch=1)
        ledger.close()
    facts = json.loads(RunDir(tmp_path).launcher.read_text())
    assert 0 <= facts["ended"] - facts["began"] < 60
    assert abs(json.loads(RunDir(tmp_path).epochs.read_text())["time"] - began) < 60


@pytest.mark.usefixtures("set_clock")
def test_processes_that_begin_after_it_was_set_agree() -> None:
    code = "from syrtos.observe import steady; print(steady.now())"
    env = {**os.environ, **steady.variables()}
    said = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    ).stdout
    assert abs(float(said) - steady.now()) < 60
    assert steady.offset_from(env) == pytest.approx(steady._offset())


def test_another_machine_has_a_beginning_of_its_own() -> None:
    assert steady.offset_from({MOMENT_VARIABLE: "another-boot 12.5"}) is None
    assert steady.offset_from({}) is None
