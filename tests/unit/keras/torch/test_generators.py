"""A `fit` that goes on draws its data as it did, though its steps, which draw too, are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from syrtos.errors import SnapshotError
from syrtos.keras.torch import generators
from syrtos.keras.torch.generators import DrawingSteps

pytestmark = pytest.mark.needs("torch")
STEPS = 9


def made() -> DrawingSteps:
    kind: Any = DrawingSteps
    return kind(None)


def data(step: int, each: int) -> list[float]:
    """What the data of a step is drawn from torch's own generator: at the begin of each epoch, or for each step."""
    return torch.rand(2).tolist() if step % each == 0 else []


@pytest.mark.parametrize("each", [1, 3, 100])
def test_data_and_steps_draw_as_in_an_undisturbed_run(each: int) -> None:
    torch.manual_seed(7)
    drawn, kept, steps = [], {}, made()
    for number in range(STEPS):
        drawn.append(data(number, each))
        with steps.step():
            torch.rand(3)
        if number == 5:
            kept = {name: np.array(value) for name, value in steps.arrays().items()}
    last = torch.rand(1)
    torch.manual_seed(7)
    again, steps = [], made()
    steps.begin(kept)
    for number in range(STEPS):
        again.append(data(number, each))
        if number == 0 or number > 5:  # the first step is computed all the same
            with steps.step():
                torch.rand(3)
        else:
            steps.skip()
        if number == 5:
            steps.put_back(kept)
    assert again == drawn
    assert torch.equal(torch.rand(1), last)


def test_what_follows_a_fit_draws_as_after_its_end() -> None:
    """Its data may draw once more after the last step, and callbacks between steps."""
    torch.manual_seed(7)
    steps = made()
    for _ in range(3):
        with steps.step():
            torch.rand(3)
        torch.rand(2)  # a callback
        steps.callbacks_ended()
    torch.rand(1)  # the data, as it ends
    kept = {name: np.array(value) for name, value in steps.arrays().items()}
    wanted = torch.rand(1)
    torch.manual_seed(9)
    again = made()
    again.begin(kept)
    for _ in range(3):
        again.skip()
    again.put_back(kept)
    assert torch.equal(torch.rand(1), wanted)


def test_steps_without_draws_keep_nothing() -> None:
    steps = made()
    for _ in range(3):
        torch.rand(1)
        with steps.step():
            pass
    assert list(steps.arrays()) == ["torch steps"]


def test_too_many_states_are_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "_MOST_STATES", 2)
    steps = made()
    for _ in range(5):
        torch.rand(1)
        with steps.step():
            torch.rand(1)
    with pytest.raises(SnapshotError, match=r"torch\.Generator"):
        steps.arrays()


class _Fit:
    """Epochs as Keras makes them: callbacks, data, steps, evaluation on data of its own, callbacks."""

    def __init__(self, drawing: frozenset[str]) -> None:
        self._drawing, self.drawn = drawing, list[float]()
        self.steps = made()

    def _draw(self, what: str) -> None:
        if what in self._drawing:
            torch.rand(2)

    def run(self, snapshot: tuple[int, bool], kept: dict[str, Any] | None = None) -> dict[str, Any]:
        """Makes all epochs, or those after a snapshot (of a step, or the end of its epoch)."""
        found: dict[str, Any] = {}
        if kept is None:
            self.steps.epoch_computed()
        else:
            self.steps.begin(kept)
        skips, count = kept is not None, 0
        for _ in range(4):
            if skips:
                self.steps.skip_callbacks()
            else:
                self._draw("epoch begins")
                self.steps.epoch_begins()
            self.drawn += torch.rand(3).tolist()  # the order of the data
            for _ in range(3):
                if skips and count:  # the first step is computed all the same
                    self.steps.skip()
                else:
                    with self.steps.step():
                        self._draw("step")
                    if not skips:
                        self._draw("batch ends")
                        self.steps.callbacks_ended()
                count += 1
                if not skips:
                    found |= self._commit() if snapshot == (count, False) else {}
                elif snapshot == (count, False):
                    self.steps.put_back(kept)  # pyright: ignore[reportArgumentType]
                    skips = False
            torch.rand(1)  # the data of the evaluation
            if skips and snapshot == (count, True):
                self.steps.put_back(kept)  # pyright: ignore[reportArgumentType]
                skips = False
            elif not skips:
                self.steps.epoch_computed()
                self._draw("epoch ends")
                found |= self._commit() if snapshot == (count, True) else {}
        self.drawn += torch.rand(1).tolist()
        return found

    def _commit(self) -> dict[str, Any]:
        return {name: np.array(value) for name, value in self.steps.arrays().items()}


@pytest.mark.parametrize("drawing", ["", "step", "batch ends", "epoch ends", "epoch begins", "all"])
@pytest.mark.parametrize("snapshot", [(2, False), (3, False), (3, True), (7, False), (9, True)])
def test_evaluations_and_callbacks_between_epochs_may_draw_too(
    drawing: str, snapshot: tuple[int, bool]
) -> None:
    every = ("step", "batch ends", "epoch ends", "epoch begins")
    which = frozenset(every if drawing == "all" else (drawing,))
    torch.manual_seed(7)
    undisturbed = _Fit(which)
    kept = undisturbed.run(snapshot)
    torch.manual_seed(7)
    again = _Fit(which)
    again.run(snapshot, kept)
    assert again.drawn == undisturbed.drawn
