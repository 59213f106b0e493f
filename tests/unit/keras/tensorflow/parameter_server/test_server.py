"""Optimizers on a parameter server: they begin with worker 0's values, and every worker is answered."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.comm.requests import Question
from syrtos.keras.tensorflow.parameter_server.server import Parameters, pack_arrays


class Asked:
    """One question, and the answer once there is one."""

    def __init__(
        self, server: Parameters, worker: int, ask: str, arrays: Any = (), **fields: Any
    ) -> None:
        self.fields: dict[str, Any] | None = None
        self.arrays: list[Any] = []
        server.asked[ask](
            Question(worker, {"ask": ask, "round": 0, **fields}, list(arrays), self._answered)
        )

    def _answered(self, fields: dict[str, Any], arrays: Any) -> None:
        assert self.fields is None, "answered twice"
        self.fields, self.arrays = fields, list(arrays)

    @property
    def value(self) -> float | None:
        """The first weight that was answered."""
        return float(self.arrays[0].view(np.float32)[0]) if self.arrays else None

    @property
    def error(self) -> str:
        return (self.fields or {}).get("error", "")


def server(workers: int, staleness: int | None = None) -> Parameters:
    return Parameters(workers, staleness, InProcessCommunicator())


def register(
    server: Parameters, worker: int, value: float, optimizer: Any = None, number: int = 0
) -> Asked:
    facts = {"place": 0, "shape": [2], "dtype": "float32", "decays": True, "constraint": None}
    return Asked(
        server,
        worker,
        "register",
        [pack_arrays([np.full(2, value, np.float32)])],
        key="0.0",
        replaces="",
        round=number,
        keras="keras",
        optimizer=optimizer or keras.saving.serialize_keras_object(keras.optimizers.SGD(1.0)),
        clip=dict.fromkeys(("clipnorm", "global_clipnorm", "clipvalue")),
        places=1,
        names=[],
        variables=[facts],
    )


def push(server: Parameters, worker: int, present: list[int]) -> Asked:
    gradients = [pack_arrays([np.ones(2, np.float32)] * len(present))]
    return Asked(
        server,
        worker,
        "push",
        gradients,
        key="0.0",
        clock=1,
        present=present,
        rows=[],
        weight=1.0,
        rate=None,
    )


def test_worker_0s_values_count_also_if_it_comes_last() -> None:
    one = server(3)
    early = [register(one, 2, 2.0), register(one, 1, 1.0)]
    assert [asked.value for asked in early] == [None, None]
    assert register(one, 0, 7.0).value == 7.0
    assert [asked.value for asked in early] == [7.0, 7.0]


def test_a_late_worker_gets_the_values_as_they_are() -> None:
    one = server(2)
    assert register(one, 0, 7.0).value == 7.0
    push(one, 0, [0])
    assert register(one, 1, 1.0).value == 6.0


def test_the_next_worker_counts_where_worker_0_makes_no_more_updates_in_this_round() -> None:
    one = server(3)
    waiting = register(one, 2, 2.0)
    Asked(one, 0, "idle")
    assert waiting.value is None
    assert register(one, 1, 1.0).value == 1.0
    assert waiting.value == 1.0


def test_in_the_next_round_worker_0_counts_again() -> None:
    one = server(2)
    for worker in (0, 1):
        Asked(one, worker, "idle")
    waiting = register(one, 1, 1.0, number=1)
    assert waiting.value is None
    assert register(one, 0, 7.0, number=1).value == 7.0
    assert waiting.value == 7.0


def test_no_registration_waits_for_a_worker_that_dies() -> None:
    one = server(3)
    waiting = register(one, 1, 1.0)
    gone = register(one, 2, 2.0)
    one.lose(2)
    one.lose(0)
    assert waiting.value == 1.0
    assert gone.value is None


def test_an_optimizer_that_the_server_can_not_make_is_refused_to_all() -> None:
    one = server(2)
    unknown = {
        "class_name": "Unknown",
        "module": "nowhere",
        "config": {},
        "registered_name": "Unknown",
    }
    waiting = register(one, 1, 1.0, unknown)
    assert "could not answer `register`" in register(one, 0, 1.0, unknown).error
    assert "could not answer `register`" in waiting.error


@pytest.mark.parametrize("last", [0, 1])
def test_gradients_of_different_variables_are_refused_to_all(last: int) -> None:
    one = server(2, staleness=0)
    for worker in (0, 1):
        register(one, worker, 1.0)
    first = push(one, 1 - last, [0])
    for asked in (push(one, last, []), first):
        assert "gradients of different variables" in asked.error


def test_a_death_that_completes_a_wrong_update_does_not_end_the_server() -> None:
    one = server(3, staleness=0)
    for worker in range(3):
        register(one, worker, 1.0)
    waiting = [push(one, 0, [0]), push(one, 1, [])]
    one.lose(2)
    assert all("gradients of different variables" in asked.error for asked in waiting)
