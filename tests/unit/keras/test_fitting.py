"""What `fit` knows of the calls of methods that train."""

from __future__ import annotations

import functools
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from syrtos.errors import ConfigurationError
from syrtos.given_seeds import GivenSeeds
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
    assert all("`predict` was called by another thread" in text for text in refused)
    fit()
    assert len(refused) == 2 * (workers > 1)
    assert all("a thread that the script has started" in text for text in refused[1:])


def test_lines_that_give_unequal_seeds_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    everyone = [{"a.py:1": "1", "a.py:2": "5"}, {"a.py:1": "1", "a.py:2": "6", "a.py:9": "7"}]
    comm = SimpleNamespace(
        size=2,
        rank=0,
        agree=lambda name, mine: [mine, mine + 1],
        allgather_object=lambda mine: [mine, everyone[1]],
    )
    session = SimpleNamespace(comm=comm, options=SimpleNamespace(batch="global"))
    monkeypatch.setattr(fitting.world, "sharing", lambda: session)
    monkeypatch.setattr(fitting, "refuse_other_threads", lambda name: None)
    mine = GivenSeeds(session)
    monkeypatch.setattr(fitting.world, "part", lambda kind: mine)
    for line, seed in everyone[0].items():
        mine.note(line, seed)
    fitting.call_together("fit")
    assert "unequal seeds at a.py:2." in capsys.readouterr().err
    mine.note("a.py:1", "8")  # after the comparison
    assert mine.digest() == 0.0
    assert mine.by_line == everyone[0]


class _Asked:
    """Workers of which each has the same first row as this one, another one, or none."""

    def __init__(self, others: list[float] | None) -> None:
        self.rank, self.size, self._others = 0, 3, others

    def agree(self, name: str, mine: float) -> list[float]:
        return [mine, *([mine, mine] if self._others is None else self._others)]


@pytest.mark.parametrize(
    ("others", "says"), [(None, True), ([7.0, 8.0], False), ([0.0, 0.0], False)]
)
def test_workers_that_train_on_equal_rows_of_their_own_are_told_once(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    others: list[float] | None,
    says: bool,
) -> None:
    session = SimpleNamespace(options=SimpleNamespace(batch="per-worker"))
    monkeypatch.setattr(fitting.world, "part", functools.cache(lambda kind: kind(None)))
    monkeypatch.setattr(fitting.world, "current", lambda: session)
    monkeypatch.setattr(fitting.world, "is_initialized", lambda: True)
    monkeypatch.setattr(fitting, "fit_is_running", lambda: fits)
    comm: Any = _Asked(others)
    for fits in (False, True, True):  # an evaluation before may read the same
        votes = fitting.vote_with_checksum(comm, 5.0)
        assert len(votes) == 3
        assert votes[0]
        assert fits or not capsys.readouterr().err
    assert capsys.readouterr().err.count("all workers have read the same first rows") == says
    assert fitting.vote_with_checksum(comm, None)[0] == 0
