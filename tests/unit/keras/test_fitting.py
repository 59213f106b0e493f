"""What `fit` knows of the calls of methods that train."""

from __future__ import annotations

import functools
import threading
from types import SimpleNamespace

import pytest

from syrtos.errors import ConfigurationError
from syrtos.keras import fitting


@pytest.mark.parametrize("workers", [1, 2])
def test_another_thread_than_that_of_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    session = SimpleNamespace(comm=SimpleNamespace(size=workers))
    monkeypatch.setattr(fitting.world, "sharing", lambda: session)
    fits = functools.cache(lambda kind: kind(session))
    monkeypatch.setattr(fitting.world, "part", fits)
    monkeypatch.setattr(fitting.registry, "active", list)
    refused: list[str] = []

    def predict() -> None:
        try:
            fitting.refuse_other_threads("predict")
        except ConfigurationError as error:
            refused.append(str(error))

    def fit() -> None:
        predict()
        thread = threading.Thread(target=predict)
        thread.start()
        thread.join()

    fitting.inside_fit(fit)()
    fit()
    assert len(refused) == (workers > 1)
    assert all("`predict` was called by another thread" in text for text in refused)
