"""What Python code of a step changes is put back; what Keras needs of it stays."""

from __future__ import annotations

import collections
import functools
import importlib
import random
import sys
import types
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from syrtos.keras.split import python_state
from syrtos.keras.split.python_state import keeping_python_state


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


def test_numbers_and_containers_are_put_back(
    model: Counting, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_generator_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, model: Counting) -> None:
    script = sys.modules["__main__"]
    drawn, left_alone = (number for number in range(5)), (number for number in range(5))
    monkeypatch.setattr(script, "drawn", drawn, raising=False)
    monkeypatch.setattr(script, "left_alone", left_alone, raising=False)
    for _ in range(3):
        with keeping_python_state(model):
            assert [next(script.drawn), next(script.drawn)] == [0, 1]
    assert list(script.drawn) == [0, 1, 2, 3, 4]
    assert script.left_alone is left_alone


def test_long_lists_lose_what_was_added(model: Counting) -> None:
    model._seen_rows = list(range(20_000))
    with keeping_python_state(model):
        model._seen_rows.append(1)
    assert len(model._seen_rows) == 20_000


def test_arrays_are_copied_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, model: Counting) -> None:
    monkeypatch.setattr(python_state, "_ROOM", 1000)
    model.single, model.small, model.large = np.zeros(()), np.zeros(20), np.zeros(200)
    with keeping_python_state(model):
        model.single += 1
        model.small += 1
        model.large += 1
    assert (float(model.single), model.small.sum(), model.large.sum()) == (0.0, 0.0, 200.0)


def test_a_name_gets_its_list_again(model: Counting) -> None:
    scores = model.history_of_norms
    with keeping_python_state(model) as changes:
        model.history_of_norms = [*model.history_of_norms, 3.0]
    assert model.history_of_norms is scores
    assert [(change.name, change.after.tolist()) for change in changes] == [
        (f"{model.name}.history_of_norms", [1.5, 3.0])
    ]


def test_namespaces_and_arguments_are_put_back(
    model: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(count: list[int] = [0]) -> None:  # noqa: B006
        count.append(1)
        step.calls = step.calls + 1  # type: ignore[attr-defined]

    step.calls, step.__module__ = 0, "__main__"  # type: ignore[attr-defined]
    script = sys.modules["__main__"]
    monkeypatch.setattr(script, "settings_of_test", types.SimpleNamespace(steps=3), raising=False)
    monkeypatch.setattr(script, "step_of_test", step, raising=False)
    with keeping_python_state(model):
        script.settings_of_test.steps = 4  # type: ignore[attr-defined]
        step()
    assert script.settings_of_test.steps == 3  # type: ignore[attr-defined]
    assert (step.__defaults__, step.calls) == (([0],), 0)  # type: ignore[attr-defined]


def test_numbers_that_were_not_there_are_changes(model: Counting) -> None:
    model.running = None
    with keeping_python_state(model) as changes:
        model.running = 0.25
        model.made_meanwhile = 2.0
    found = {change.name: (change.before.tolist(), change.after.tolist()) for change in changes}
    assert found == {
        f"{model.name}.running": (0.0, 0.25),
        f"{model.name}.made_meanwhile": (0.0, 2.0),
    }


def test_arrays_in_a_list_are_numbers(model: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[Any] = []
    monkeypatch.setattr(sys.modules["__main__"], "outputs_of_test", outputs, raising=False)
    with keeping_python_state(model) as changes:
        outputs.append(np.ones((2, 2)))
    assert outputs == []
    assert [change.after.tolist() for change in changes if "outputs_of_test" in change.name] == [
        [1.0] * 4
    ]


@pytest.mark.needs("torch")
def test_a_generator_of_torch_is_put_back(model: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(3)
    expected = torch.randperm(9, generator=torch.Generator().manual_seed(3)).tolist()
    monkeypatch.setattr(sys.modules["__main__"], "generator_of_test", generator, raising=False)
    with keeping_python_state(model):
        torch.randperm(5, generator=generator)
    assert torch.randperm(9, generator=generator).tolist() == expected


def test_modules_beside_the_script_are_put_back(
    model: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "annealing_of_test.py").write_text(
        "STEP = 0\ndef advance():\n    global STEP\n    STEP += 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    annealing = importlib.import_module("annealing_of_test")
    monkeypatch.delitem(sys.modules, "annealing_of_test")
    monkeypatch.setitem(sys.modules, "annealing_of_test", annealing)
    monkeypatch.setattr(
        sys.modules["__main__"], "__file__", str(tmp_path / "train.py"), raising=False
    )
    with keeping_python_state(model) as changes:
        annealing.advance()
    assert annealing.STEP == 0
    assert [change.after.tolist() for change in changes if change.name.endswith(".STEP")] == [1.0]


def test_what_a_partial_function_and_a_hook_hold_is_put_back(model: Counting) -> None:
    table, seen = [1.0], [2.0]
    model.criterion = functools.partial(lambda table, value: table.append(value), table)
    with keeping_python_state(model, hooks=[lambda value: seen.append(value)]):
        model.criterion(3.0)
        seen.append(4.0)
    assert (table, seen) == ([1.0], [2.0])


@pytest.mark.needs("torch")
def test_modules_and_schedules_outside_of_the_model_are_put_back(
    model: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    norm = torch.nn.BatchNorm1d(3)
    optimizer = torch.optim.SGD(norm.parameters(), 0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    monkeypatch.setattr(sys.modules["__main__"], "held_by_test", [norm, plateau], raising=False)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    with keeping_python_state(model) as changes:
        norm(torch.ones(4, 3))
        plateau.step(1.5)
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    assert plateau.best == float("inf")
    assert [change.name for change in changes] == ["the state of ReduceLROnPlateau"]


@pytest.mark.needs("torch")
def test_batches_that_a_loader_gave_meanwhile_are_given_again(model: Counting) -> None:
    import torch

    model.batches = iter(torch.utils.data.DataLoader(list(range(6)), batch_size=2))  # type: ignore[arg-type]
    with keeping_python_state(model):
        next(model.batches)
    assert [batch.tolist() for batch in model.batches] == [[0, 1], [2, 3], [4, 5]]


def step_in_a_function(iterator: Any, box: dict[str, Any], total: float = 0.0) -> Any:
    """A model whose step keeps what it has seen in variables of the function around it, and in defaults."""
    best = float("inf")
    log: list[float] = []

    class Model(keras.Model):
        def train_step(
            self,
            data: Any,
            seen: list[float] = [],  # noqa: B006
            *,
            kept: dict[str, float] = {},  # noqa: B006
        ) -> Any:
            nonlocal best, total
            drawn = next(iterator) + next(box["weights"])
            best, total = min(best, drawn), total + drawn
            log.append(drawn)
            seen.append(drawn)
            kept[str(drawn)] = drawn
            return best, total, list(log), list(seen), dict(kept)

    return Model()


@pytest.mark.parametrize("kind", [iter, lambda values: (value for value in values)])
def test_what_a_function_around_the_step_holds(kind: Any) -> None:
    """It is put back, iterators too, and what has changed is known."""
    made: Any = step_in_a_function(kind([1.0, 2.0, 3.0]), {"weights": kind([10.0, 20.0, 30.0])})
    for _ in range(2):
        with keeping_python_state(made) as changes:
            assert made.train_step(None) == (11.0, 11.0, [11.0], [11.0], {"11.0": 11.0})
        names = {change.name for change in changes}
        assert {
            f"train_step.{name}" for name in ("best", "total", "log", "default 0", "kept")
        } <= names
    assert made.train_step(None)[:2] == (11.0, 11.0)
    assert made.train_step(None)[:3] == (11.0, 33.0, [11.0, 22.0])


def test_attributes_that_a_function_gets_in_a_step() -> None:
    def note(value: float) -> None:
        note.log = [*getattr(note, "log", []), value]  # type: ignore[attr-defined]

    class Model(keras.Model):
        def train_step(self, data: Any) -> None:
            note(1.0)

    made: Any = Model()
    with keeping_python_state(made) as changes:
        made.train_step(None)
    assert not hasattr(note, "log")
    assert [change.name for change in changes] == ["note's attributes"]


class Unbuilt(keras.Model):
    """A model that its first call builds, and whose class has values that a step hides."""

    calls = 0
    width: int

    def train_step(self, data: Any) -> None:
        self.calls += 1
        self.width = 3
        self.dense = keras.layers.Dense(self.width)


def test_values_of_the_class_come_to_light_again_where_the_first_call_builds() -> None:
    made: Any = Unbuilt()
    with keeping_python_state(made):
        made.train_step(None)
    assert made.calls == 0
    assert made.width == 3
    assert hasattr(made, "dense")


def test_an_empty_dictionary_that_gets_numbers() -> None:
    model = Counting()
    model(np.zeros((1, 2)))
    model.of_rows = {}  # type: ignore[attr-defined]
    with keeping_python_state(model) as changes:
        model.of_rows["7"] = 2.5  # type: ignore[attr-defined]
    assert model.of_rows == {}  # type: ignore[attr-defined]
    (change,) = changes
    assert change.name.endswith(".of_rows")
    assert change.after.tolist() == [2.5]


def test_what_keras_notes_under_private_names_is_not_compared(model: Counting) -> None:
    dense: Any = model.dense
    object.__setattr__(dense, "_call_result", 1.5)  # as metrics of Keras 2 have it
    object.__setattr__(dense, "seen", 0)
    with keeping_python_state(model) as changes:
        object.__setattr__(dense, "_call_result", 2.5)
        object.__setattr__(dense, "seen", 1)
    assert dense._call_result == 1.5
    assert [change.name.rpartition(".")[2] for change in changes] == ["seen"]


class Making(keras.Model):
    """Makes what it needs in its first step, by a method of its own and under any name."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.helper = Helper()

    def call(self, x: object) -> object:
        return self.dense(x)

    def train_step(self, data: object) -> dict[str, float]:
        del data
        if not hasattr(self, "_warm"):
            object.__setattr__(self, "_warm", [0])
        self._warm[0] += 1
        self.helper.count()
        return {"steps": self._warm[0]}


class Helper:
    def count(self) -> None:
        self._counted = getattr(self, "_counted", 0) + 1


def test_what_a_step_has_made_is_removed_under_whatever_name() -> None:
    model = Making()
    model(np.zeros((2, 3), "float32"))
    model.compile("sgd", "mse")
    model._jit_compile = model._jit_compile  # a name of Keras's
    before = set(vars(model))
    with keeping_python_state(model):
        assert model.train_step(None) == {"steps": 1}
        model._losses_override = [1]  # which Keras's code has too
    assert not hasattr(model, "_warm")
    assert not hasattr(model.helper, "_counted")
    assert set(vars(model)) >= before
    assert model.train_step(None) == {"steps": 1}


def test_what_an_object_gets_while_its_layer_is_built_stays() -> None:
    class Sized(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.helper = Helper()

        def build(self, input_shape: Any) -> None:
            self.helper.width = input_shape[-1]  # type: ignore[attr-defined]

        def call(self, x: Any) -> Any:
            return x[:, : self.helper.width]  # type: ignore[attr-defined]

    model = keras.Sequential([layer := Sized()])
    with keeping_python_state(model):
        model(np.zeros((2, 3), "float32"))
    assert layer.helper.width == 3  # type: ignore[attr-defined]
