"""Workers that enter different methods of a model are told at once."""

from __future__ import annotations

import functools
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from syrtos.comm import world
from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.errors import ConfigurationError, OutOfStepError
from syrtos.keras import fitting
from syrtos.keras.patching import Patch, install
from syrtos.keras.tensorflow.patching import agreeing


@agreeing
def fit(model: Any, epochs: int = 1) -> str:
    return f"fit {model} for {epochs}"


@agreeing
def evaluate(model: Any) -> str:
    return f"evaluate {model}"


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> threading.local:
    """Each thread's own session; see `together`."""
    local = threading.local()
    monkeypatch.setattr(world, "current", lambda: local.session)
    # Workers are threads here.
    monkeypatch.setattr(fitting, "refuse_other_threads", lambda name: None)
    return local


def test_workers_that_call_the_same_go_on(together: Any, sessions: threading.local) -> None:
    def play(comm: InProcessCommunicator) -> str:
        sessions.session = SimpleNamespace(
            part=functools.cache(lambda kind: kind(None)), comm=comm, world=SimpleNamespace(size=1)
        )
        return fit("m", epochs=3)

    assert together(2, play) == ["fit m for 3"] * 2


def test_workers_that_call_different_methods_are_all_told(
    together: Any, sessions: threading.local
) -> None:
    def play(comm: InProcessCommunicator) -> str:
        sessions.session = SimpleNamespace(part=functools.cache(lambda kind: kind(None)), comm=comm)
        with pytest.raises(OutOfStepError) as caught:
            (evaluate if comm.rank else fit)("m")
        return str(caught.value)

    for text in together(2, play):
        assert "rank 0: model.fit\n" in text
        assert "rank 1: model.evaluate\n" in text


def test_what_a_version_of_keras_lacks_is_one_error_and_nothing_is_replaced() -> None:
    import keras

    fits = keras.Model.fit
    rows = [
        Patch("keras:Model", "fit", lambda original: lambda *args: None, "It is there."),
        Patch(
            "keras.src.trainers.gone:Trainer",
            "fit",
            lambda original: original,
            "Its module is not there.",
        ),
        Patch("keras:Model", "fits", lambda original: original, "Its name is not there."),
    ]
    with pytest.raises(
        ConfigurationError,
        match=r"lacks .*: keras\.src\.trainers\.gone\.Trainer\.fit, keras\.Model\.fits\. .* seen to work with",
    ):
        install(rows)
    assert keras.Model.fit is fits
