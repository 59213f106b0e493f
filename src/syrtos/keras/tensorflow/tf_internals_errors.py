"""Private symbols by which TensorFlow's errors reach a script. Seen to work on TensorFlow 2.21."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf
from tensorflow.python.client import session as client_session
from tensorflow.python.eager import core, execute

if TYPE_CHECKING:
    from syrtos.keras.protocols import P, R


def convert_errors(convert: Callable[[BaseException], BaseException]) -> None:
    """Replaces errors that leave a graph by what ``convert`` makes of them."""
    # An operation in Python can't choose the class: all but a few come as UnknownError.
    of_status = core._status_to_exception
    setattr(core, "_status_to_exception", lambda status: convert(of_status(status)))  # noqa: B010

    def converting(original: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(original)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return original(*args, **kwargs)
            except tf.errors.OpError as error:
                converted = convert(error)
                if converted is error:
                    raise
                raise converted from None

        return call

    for owner, names in (
        (execute, ("execute", "execute_with_cancellation")),
        (client_session.BaseSession, ("_do_call",)),
    ):
        for name in names:
            setattr(owner, name, converting(getattr(owner, name)))


def replace_message(error: tf.errors.OpError, message: str) -> None:
    """Gives an error of an operation another message."""
    # `message` is a property without a setter.
    error._message = message
