"""A loss that is not finite is said once, also where it was computed a while ago."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from syrtos.comm import world
from syrtos.keras.features import finite
from syrtos.settings import Options


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = SimpleNamespace(world=SimpleNamespace(rank=0), options=SimpleNamespace(servers=0))
    monkeypatch.setattr(world, "current", lambda: made)
    monkeypatch.setattr(finite, "is_asked", lambda: False)
    return made


@pytest.mark.parametrize(
    "losses", [[1.0, math.nan, 2.0], [np.float32(1), np.array(np.inf), np.array(0.5)]]
)
def test_the_first_one_is_named(
    session: Any, losses: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    notice = finite.NonFiniteLossReport(session)
    for batch, loss in enumerate(losses):
        notice.look(0, batch, {"loss": loss})
    notice.read()
    said = capsys.readouterr().err
    assert "since batch 2 of epoch 1" in said
    assert said.count("the loss is") == 1


def test_losses_of_a_device_are_read_later(
    session: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    notice = finite.NonFiniteLossReport(session)
    notice.look(0, 0, {"loss": np.array(np.nan)})
    assert capsys.readouterr().err == ""
    notice.read()
    assert "nan" in capsys.readouterr().err


def test_other_ranks_are_silent(session: Any, capsys: pytest.CaptureFixture[str]) -> None:
    session.world.rank = 1
    notice = finite.NonFiniteLossReport(session)
    notice.look(0, 0, {"loss": math.nan})
    notice.read()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize("in_step", [True, False])
def test_an_update_outside_of_a_step_undoes_no_step(in_step: bool) -> None:
    joined = world.init(Options(on_nan="skip"))
    assert not finite.look(None, [], [False], [False], 1, in_step)
    assert finite.step_is_left_out(joined.comm) is in_step
    assert not finite.step_is_left_out(joined.comm)
