"""The optimizers of a worker whose weights parameter servers hold."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from syrtos.comm import world
from syrtos.keras.features import asynchronous
from syrtos.settings import Options


class Optimizer:
    pass


class Remote:
    """Stands for `RemoteOptimizer`, which refers to its optimizer weakly."""

    variables: Sequence[Any] = ()

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)

    @property
    def optimizer(self) -> Any:
        return self._optimizer()

    def begin(self) -> None: ...

    def step(self, grads: Sequence[Any], variables: Sequence[Any]) -> None: ...

    def pull(self) -> None: ...


@pytest.fixture(autouse=True)
def session(no_session: None) -> world.Session:
    return world.init(Options())


def test_optimizers_are_held_in_their_order_until_they_are_gone() -> None:
    first: Any = Optimizer()
    second: Any = Optimizer()
    remotes = [Remote(one) for one in (first, second)]
    assert asynchronous.remote_of(first) is None
    for one in remotes:
        asynchronous.hold(one)
    assert asynchronous.remote_of(first) is remotes[0]
    assert asynchronous.held_optimizers() == [(first, remotes[0]), (second, remotes[1])]
    del first
    gc.collect()
    # The function of a step may keep what stands for an optimizer longer than it lives.
    assert remotes[0].optimizer is None
    assert asynchronous.held_optimizers() == [(second, remotes[1])]


def test_an_optimizer_lives_while_a_caller_goes_through_the_list() -> None:
    only: Any = Optimizer()
    vars(only)["itself"] = only
    remote = Remote(only)
    asynchronous.hold(remote)
    del only
    held = asynchronous.held_optimizers()
    gc.collect()
    assert held[0][1].optimizer is not None
    del held
    gc.collect()
    assert asynchronous.held_optimizers() == []
