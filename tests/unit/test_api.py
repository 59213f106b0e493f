"""The native API in a world of one, and its refusals."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import syrtos
from syrtos.comm import world
from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.comm.watchdog import Watchdog
from syrtos.errors import ConfigurationError, WorldError
from syrtos.observe.ledger import Ledger
from syrtos.topology import World

pytestmark = pytest.mark.usefixtures("no_session")


def session_of(comm: InProcessCommunicator, ledger: Ledger | None = None) -> world.Session:
    place = World(comm.rank, comm.size)
    return world.Session(place, comm, comm, syrtos.Options(), ledger or Ledger(), Watchdog())


@pytest.mark.parametrize(
    "name", ["rank", "size", "local_rank", "local_size", "node_rank", "barrier"]
)
def test_nothing_works_before_init(name: str) -> None:
    with pytest.raises(
        WorldError, match=r"call `syrtos.init\(\)` first, or start with `syrtos run`"
    ):
        getattr(syrtos, name)()


def test_a_plain_process_is_a_world_of_one() -> None:
    assert not syrtos.is_initialized()
    syrtos.init()
    assert syrtos.is_initialized()
    numbers = [
        syrtos.rank(),
        syrtos.size(),
        syrtos.local_rank(),
        syrtos.local_size(),
        syrtos.node_rank(),
    ]
    assert numbers == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("allreduce", [1, 2]),
        ("allgather", [1, 2]),
        ("broadcast", [1, 2]),
        ("reducescatter", [1, 2]),
    ],
)
def test_a_world_of_one_exchanges_with_itself(name: str, expected: list[int]) -> None:
    syrtos.init()
    given = np.array([1, 2])
    result = getattr(syrtos, name)(given)
    np.testing.assert_array_equal(result, expected)
    result[0] = 7
    assert given[0] == 1


@pytest.mark.parametrize(
    "name",
    [
        "allreduce",
        "allgather",
        "broadcast",
        "reducescatter",
        "alltoall",
        "broadcast_object",
        "allgather_object",
    ],
)
def test_exchanges_say_what_they_take_give_and_raise(name: str) -> None:
    text = inspect.getdoc(getattr(syrtos, name)) or ""
    parameters = inspect.signature(getattr(syrtos, name)).parameters
    assert all(f"\n    {parameter}: " in text for parameter in parameters), text
    assert [text.index(part) for part in ("Args:", "Returns:", "Raises:")] == sorted(
        text.index(part) for part in ("Args:", "Returns:", "Raises:")
    )


def test_lists_and_objects_are_taken() -> None:
    syrtos.init()
    np.testing.assert_array_equal(syrtos.allreduce([1.0, 2.0], syrtos.ReduceOp.MEAN), [1.0, 2.0])
    rows, received = syrtos.alltoall([[1, 2], [3, 4]])
    assert (rows.tolist(), received) == ([[1, 2], [3, 4]], [2])
    assert syrtos.broadcast_object({"a": [1, None]}) == {"a": [1, None]}
    assert syrtos.allgather_object("x") == ["x"]


def test_a_second_init_takes_no_other_options() -> None:
    syrtos.init(syrtos.Options(timeout=5.0))
    syrtos.init()
    syrtos.init(syrtos.Options(timeout=5.0))
    with pytest.raises(ConfigurationError, match="second time with other options"):
        syrtos.init(syrtos.Options(timeout=6.0))


def test_options_come_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYRTOS_OPTIONS", syrtos.Options(batch="per-worker", timeout=7.0).to_json())
    syrtos.init()
    session = world.current()
    assert session.options.batch == "per-worker"
    assert session.watchdog.timeout == 7.0


@pytest.mark.parametrize(
    ("variable", "fix"), [("OMPI_COMM_WORLD_SIZE", "its own MPI"), ("SLURM_STEP_NUM_TASKS", "srun")]
)
def test_a_world_that_ours_can_not_join_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, fix: str
) -> None:
    monkeypatch.setenv(variable, "2")
    with pytest.raises(WorldError, match=fix):
        syrtos.init()
    assert not syrtos.is_initialized()


def test_only_asking_for_a_rank_makes_a_script_rank_aware() -> None:
    syrtos.init()
    syrtos.size()
    syrtos.local_size()
    assert not world.current().rank_aware
    syrtos.rank()
    assert world.current().rank_aware


@pytest.mark.parametrize("ranks", [[], [1], [0, 0], [-1]])
def test_impossible_process_sets_are_refused(ranks: list[int]) -> None:
    syrtos.init()
    with pytest.raises(ConfigurationError, match=r"different ranks of the world \(0 to 0\)"):
        syrtos.process_set(ranks)


def test_a_process_set_of_everyone_works_like_the_world() -> None:
    syrtos.init()
    everyone = syrtos.process_set([0])
    assert (everyone.included, everyone.rank(), everyone.size(), everyone.ranks) == (
        True,
        0,
        1,
        (0,),
    )
    assert syrtos.allreduce(3.0, process_set=everyone) == 3.0


@pytest.mark.parametrize("call", ["allreduce", "broadcast_object", "allgather"])
def test_workers_outside_a_set_are_told_so(call: str) -> None:
    world.adopt(session_of(InProcessCommunicator()))
    others: Any = syrtos.ProcessSet([1, 2], None)
    assert not others.included
    with pytest.raises(
        ConfigurationError, match=r"rank 0\) is no member of the process set \[1, 2\].*included"
    ):
        getattr(syrtos, call)(1.0, process_set=others)


def test_shutdown_writes_down_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger()
    ledger.open(str(tmp_path), 0)
    world.adopt(session_of(InProcessCommunicator(), ledger))
    with ledger.span("checkpoint"):
        pass
    syrtos.shutdown()
    assert (tmp_path / "ledger" / "rank-0.jsonl").read_text().count("\n") == 2


def test_shutdown_without_a_world_does_nothing() -> None:
    syrtos.shutdown()
    assert not syrtos.is_initialized()


def test_a_plain_process_records_only_where_it_is_told(tmp_path: Path) -> None:
    syrtos.init()
    session = world.current()
    session.record_in(str(tmp_path / "run"))
    syrtos.shutdown()
    assert session.options.run_dir == str(tmp_path / "run")
    assert (tmp_path / "run" / "ledger" / "rank-0.jsonl").read_text().startswith("{")
