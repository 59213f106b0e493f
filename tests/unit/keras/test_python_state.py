"""What Python code of a step changes is put back; what Keras needs of it stays."""

from __future__ import annotations

import collections
import random
import sys
from typing import Any

import keras
import numpy as np
import pytest

from syrtos.keras.python_state import keeping_python_state


class Counting(keras.Model):
    """A model that keeps what a script may keep."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.count = 0
        self.history_of_norms: list[float] = [1.5]
        self.best: dict[str, Any] = {"epoch": 0, "norms": [1]}
        self.recent = collections.deque([1], maxlen=3)
        self._hidden: set[int] = set()
        self.table = np.zeros(3)

    def call(self, x: object) -> object:
        return self.dense(x)


def changed(model: Counting) -> tuple[object, ...]:
    return (
        model.count,
        list(model.history_of_norms),
        model.best["epoch"],
        list(model.best["norms"]),
        list(model.recent),
        set(model._hidden),
        model.table.tolist(),
    )


def change(model: Counting) -> None:
    model.count += 1
    model.history_of_norms.append(2.0)
    model.best["epoch"] = 1
    model.best["norms"].append(2)
    model.recent.append(7)
    model._hidden.add(3)
    model.table += 1
    model.made_meanwhile = 3


@pytest.fixture
def model() -> Counting:
    made = Counting()
    made(np.zeros((1, 2)))
    return made


def test_numbers_and_containers_are_put_back(model: Counting, capsys: pytest.CaptureFixture[str]) -> None:
    before, draws = changed(model), str(np.random.get_state())
    with keeping_python_state(model):
        change(model)
        print("a line of the step")
        np.random.rand()
        random.random()
    assert changed(model) == before
    assert model.recent.maxlen == 3
    assert not hasattr(model, "made_meanwhile")
    assert str(np.random.get_state()) == draws
    assert capsys.readouterr().out == ""


def test_a_step_that_fails_is_put_back(model: Counting) -> None:
    before = changed(model)

    def fail() -> None:
        with keeping_python_state(model):
            change(model)
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert changed(model) == before


def test_names_of_the_script_are_put_back(model: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    script: Any = sys.modules["__main__"]
    monkeypatch.setattr(script, "steps", 3, raising=False)
    monkeypatch.setattr(script, "seen", [1], raising=False)
    with keeping_python_state(model):
        script.steps += 1
        script.seen.append(2)
    assert (script.steps, script.seen) == (3, [1])


def test_layers_that_a_step_made_stay(model: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(sys.modules["__main__"], "made", made, raising=False)
    with keeping_python_state(model):
        made.append(keras.layers.Dense(1))
    assert len(made) == 1
