"""`run_world` as users call it in tests of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syrtos.errors import ConfigurationError
from syrtos.testing import WorldFailed, run_world


def facts(word: str) -> list[Any]:
    """What a worker sees of itself."""
    import syrtos

    own = [syrtos.rank(), syrtos.size(), float(syrtos.allreduce(np.ones(3)).sum())]
    return [*own, word, os.environ["OF_THIS_WORLD"], float(np.random.random()), os.getpid()]


def test_workers_are_a_world_with_an_environment_of_its_own() -> None:
    first, second = run_world(2, facts, "é", env={"OF_THIS_WORLD": "1"})
    assert first[:5] == [0, 2, 6.0, "é", "1"]
    assert second[:5] == [1, 2, 6.0, "é", "1"]
    assert len({first[5], second[5]}) == 2, (
        "random numbers of the process that they were forked from"
    )
    assert os.getpid() not in (first[6], second[6])


def test_a_world_by_mpiexec_is_the_same() -> None:
    found = run_world(2, facts, "é", env={"OF_THIS_WORLD": "1"}, forked=False)
    assert [each[:5] for each in found] == [[0, 2, 6.0, "é", "1"], [1, 2, 6.0, "é", "1"]]


def imports() -> list[bool]:
    """Which modules are there: before any import, after that of Keras."""
    names = ("keras", "tensorflow", "tf_keras")
    before = [name in sys.modules for name in names]
    import keras

    return [*before, *(name in sys.modules for name in names), keras is sys.modules["keras"]]


@pytest.mark.needs("tensorflow")
def test_workers_have_imported_no_framework_by_themselves() -> None:
    assert run_world(1, imports) == [[False, False, False, True, True, False, True]]


def dies_on_one() -> None:
    """Rank 0 waits for a rank that says something and is gone."""
    import syrtos

    if syrtos.rank() == 1:
        print("last words", flush=True)
        os.kill(os.getpid(), 9)
    syrtos.barrier()


def test_a_killed_worker_ends_the_others_and_leaves_its_words() -> None:
    with pytest.raises(
        WorldFailed, match=r"Rank 1 failed \(exit code -9\)[\s\S]*-- rank 1 --\nlast words"
    ):
        run_world(2, dies_on_one)


def aborts_on_one() -> None:
    """A thread that never ends would hold up C's exit handlers."""
    from mpi4py import MPI

    import syrtos

    if syrtos.rank() == 1:
        MPI.COMM_WORLD.Abort(7)
    syrtos.barrier()


def test_a_worker_that_aborts_ends_the_others() -> None:
    with pytest.raises(WorldFailed, match=r"Rank 1 failed \(exit code 7\)"):
        run_world(2, aborts_on_one)


def waits() -> None:
    """Longer than anybody."""
    import time

    time.sleep(600)


@pytest.mark.parametrize("forked", [True, False])
def test_time_that_is_up(forked: bool) -> None:
    with pytest.raises(WorldFailed, match="did not end within 1 s"):
        run_world(2, waits, timeout=1.0, forked=forked)


def _nested() -> Callable[[], None]:
    def inner() -> None:
        return

    return inner


class Requester:
    """Of a function that is no function of a module."""

    def method(self) -> None:
        return


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda: None, r"<lambda>, which is a lambda\."),
        (_nested(), r"inner, which is defined inside of another function\."),
        (Requester().method, r"Requester\.method, which is no function of a file\."),
        (len, r"len, which is no function of a file\."),
    ],
)
def test_what_workers_can_not_find_is_refused(function: Callable[..., Any], what: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"{what}[\s\S]*`def` at the top level of a module"
    ):
        run_world(2, function)


def test_a_function_of_a_file_that_is_gone(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec("def typed_in() -> int:\n    return 1\n", names)
    with pytest.raises(ConfigurationError, match="typed_in, which is no function of a file"):
        run_world(2, names["typed_in"])
