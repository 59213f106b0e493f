"""Keras's own callbacks stay in their thread; others are called in the training thread."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from syrtos.keras import keras_internals


class Callback:
    """Notes its calls: the thread, the batch and the logs."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, dict[str, Any]]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.calls.append((threading.current_thread().name, batch, logs))


class OfSyrtos(Callback):
    __module__ = "syrtos.keras.trainer.callbacks"


class OfKeras(Callback):
    __module__ = "keras.src.callbacks.progbar_logger"


class CallbackList:
    """The parts of Keras's list that are used; it dispatches to a thread named `other`."""

    _async_train, _async_test, _async_predict = True, False, False

    def __init__(self, *callbacks: Any) -> None:
        self.callbacks = list(callbacks)

    def _async_dispatch(self, function: Any, *args: Any) -> None:
        thread = threading.Thread(target=function, args=args, name="other")
        thread.start()
        thread.join()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        raise AssertionError("it was replaced")


@pytest.fixture
def called() -> tuple[Any, Any, Any]:
    ours, of_keras, of_script = OfSyrtos(), OfKeras(), Callback()
    callbacks: Any = CallbackList(ours, of_keras, of_script)
    keras_internals.call_in_training_thread(callbacks)
    callbacks.on_train_batch_end(3, {"loss": np.float32(1), "parts": {"a": np.array(2)}})
    return ours.calls, of_keras.calls, of_script.calls


def test_threads(called: tuple[Any, Any, Any]) -> None:
    here = threading.current_thread().name
    assert [calls[0][:2] for calls in called] == [(here, 3), ("other", 3), (here, 3)]


def test_numbers_are_not_read_for_callbacks_without_a_hook() -> None:
    class AtEpochs:
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise AssertionError("it has no hook of its own")

        on_batch_end = on_train_batch_end
        on_train_batch_end._is_default = True  # type: ignore[attr-defined]  # as Keras's decorator notes it

    callbacks: Any = CallbackList(AtEpochs())
    keras_internals.call_in_training_thread(callbacks)
    callbacks.on_train_batch_end(0, {"loss": object()})


def test_logs(called: tuple[Any, Any, Any]) -> None:
    ours, of_keras, of_script = (calls[0][2] for calls in called)
    assert of_keras == of_script == {"loss": 1.0, "a": 2.0}
    assert list(ours) == ["loss", "a"]
    assert isinstance(ours["a"], np.ndarray), "no number is read for syrtos"


def test_callbacks_that_change_the_list_or_themselves() -> None:
    class TurnsItselfOff(Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            self.on_train_batch_end = lambda *args, **kwargs: None  # type: ignore[method-assign]

    class LeavesTheList(Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            callbacks.callbacks.remove(self)

    off, leaves, last = TurnsItselfOff(), LeavesTheList(), Callback()
    callbacks: Any = CallbackList(off, last, leaves)
    keras_internals.call_in_training_thread(callbacks)
    for batch in range(3):
        callbacks.on_train_batch_end(batch, {"loss": 1.0})
    assert [len(each.calls) for each in (off, leaves, last)] == [1, 1, 3]
