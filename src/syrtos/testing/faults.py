"""Faults as a vocabulary: the kind of fault, its rank and its step."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Literal

from syrtos.comm import world

Fault = Literal["exception", "exit", "kill", "hang"]


class fail_at:
    """A Keras callback that lets one worker fail.

    Usage::

        model.fit(..., callbacks=[syrtos.testing.fail_at(rank=1, step=20, how="kill")])

    ``exception`` raises, ``exit`` ends the process with code 3, ``kill`` is SIGKILL, ``hang``
    sleeps for an hour.
    """

    def __init__(self, rank: int, step: int, how: Fault = "exception") -> None:
        self._rank = rank
        self._left = step
        self._how: Fault = how

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Counts down, and fails when it is time."""
        self._left -= 1
        if self._left == 0 and world.current().world.rank == self._rank:
            _FAULTS[self._how]()

    def set_model(self, model: object) -> None:
        """Takes the model from Keras, and does nothing with it."""

    def set_params(self, params: object) -> None:
        """Takes the parameters of `fit` from Keras, and does nothing with them."""

    # For the other methods of a callback: a subclass of Keras's would need Keras, which this room
    # does not import.
    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):
            return lambda *args, **kwargs: None
        raise AttributeError(name)


def _raise() -> None:
    raise RuntimeError("fault injected by syrtos.testing.fail_at")


_FAULTS: dict[Fault, Callable[[], None]] = {
    "exception": _raise,
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda: time.sleep(3600),
}
