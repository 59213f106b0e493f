"""A function on its way to agents, and its result on its way back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from syrtos.launch.remote import carried_call, held_call
from syrtos.launch.remote.carried_call import CarriedCall
from syrtos.launch.remote.held_call import HeldCall
from syrtos.settings import CALL_VARIABLE


class Answering:
    """An agent whose answers come from this process, and that may be gone."""

    def __init__(self, host: str) -> None:
        self.host, self.lost, self.held = host, "", HeldCall()

    def ask(self, what: str, data: bytes = b"", **facts: object) -> Any:
        if self.lost:
            raise ConnectionError("gone")
        found, more = self.held.answer({"what": what, "data": bytes(data), **facts})
        return {**more, "data": bytes(found)}

    def leave(self, result: bytes) -> None:
        """Does what rank 0 does."""
        Path(self.held.begin()[CALL_VARIABLE].partition(":")[2]).write_bytes(result)


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    for module in (held_call, carried_call):
        monkeypatch.setattr(module, "PIECE", 7)
    return [Answering("alpha"), Answering("beta")]


@pytest.fixture
def call(tmp_path: Path) -> CarriedCall:
    (tmp_path / "parcel").write_bytes(b"a function of many bytes")
    found = CarriedCall.of({CALL_VARIABLE: f"{tmp_path}/parcel:{tmp_path}/result"})
    assert found is not None
    return found


def test_the_function_and_its_result_travel_in_pieces(
    tmp_path: Path, agents: list[Any], call: CarriedCall
) -> None:
    assert agents[0].held.begin() == {}
    call.bring(agents)
    call.bring(agents)
    for agent in agents:
        place = agent.held.begin()[CALL_VARIABLE].partition(":")[0]
        assert Path(place).read_bytes() == b"a function of many bytes"
        assert os.readlink(place).startswith("/memfd:syrtos-notebook")
    assert call.fetch() == ""
    assert (tmp_path / "result").read_bytes() == b""
    agents[1].leave(b"what rank 0 returns")
    assert call.fetch() == ""
    assert (tmp_path / "result").read_bytes() == b"what rank 0 returns"


def test_a_new_generation_forgets_a_result(agents: list[Any], call: CarriedCall) -> None:
    call.bring(agents)
    agents[0].leave(b"of the generation before")
    agents[0].held.begin()
    assert agents[0].held.result() == b""


def test_a_function_that_came_in_part_comes_whole_again(
    agents: list[Any], call: CarriedCall
) -> None:
    agents[0].ask(held_call.TAKE, b"another one that is much longer than the next", begin=0)
    call.bring(agents)
    place = agents[0].held.begin()[CALL_VARIABLE].partition(":")[0]
    assert Path(place).read_bytes() == b"a function of many bytes"


def test_a_host_that_is_lost_with_the_result_is_named(agents: list[Any], call: CarriedCall) -> None:
    call.bring(agents)
    agents[0].lost = "was switched off"
    assert call.fetch() == "the result can't be fetched from alpha (was switched off)"
    agents[1].leave(b"here")
    assert call.fetch() == ""


def test_without_the_variable_there_is_no_call() -> None:
    assert CarriedCall.of({}) is None
    assert CarriedCall.of({CALL_VARIABLE: "/proc/1/fd/1"}) is None
