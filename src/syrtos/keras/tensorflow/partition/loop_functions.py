"""The `tf.function`s by which a script's own loop trains, partitioned as steps of `fit` are.

A loop without a strategy gives each worker whole batches. A function that is known to make an
update (its first call shows it, and is computed whole) is from then on one program of all workers:
each computes its rows of the arguments, and has the results of the whole function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.keras import fitting
from syrtos.keras.datasets.checksums import checksum_of, is_compared
from syrtos.keras.replica.updates import AskedReductions
from syrtos.keras.split import noted_gradients, verdicts
from syrtos.keras.tensorflow import tf_internals
from syrtos.keras.tensorflow.assignments import (
    as_one_process,
    computes_whole_batch,
    current_step,
)
from syrtos.keras.tensorflow.partition.step import PartitionedStep, rows_among
from syrtos.keras.tensorflow.strategy import splits_in_script
from syrtos.keras.trainer import timing
from syrtos.records import record_of

# The positional arguments of a call, and those by name.
Arguments = tuple[Sequence[Any], Mapping[str, Any]]


class LoopFunction:
    """A function that trains, as a program that all workers compute together.

    Attributes:
        has_own_batches: whether the workers call it with batches of their own.
    """

    def __init__(self, function: Any, session: Session) -> None:
        """
        Args:
            function: a `tf.function` of the script's.
            session: the workers.
        """
        self.has_own_batches = False
        self._session, self._calls, self._has_told = session, 0, False
        self._name = getattr(function.python_function, "__name__", "function")
        self._copy = tf_internals.copy_function(function)
        self._step = PartitionedStep(self._compute, session, True, self._tell_whole)
        self._emitted = tf.function(
            lambda args, kwargs: self._step.compute(rows_among((args, kwargs), session)),
            autograph=False,
        )

    def begin_call(self, arguments: Arguments) -> None:
        """Compares the arguments of some calls over the workers. All workers call this together.

        Raises:
            DataError: the workers were given equal arguments so far, and unequal ones now.
        """
        number, self._calls = self._calls, self._calls + 1
        # A script that knows its rank may take its own batches from any call on.
        if self.has_own_batches or not (is_compared(number) or self._session.rank_aware):
            return
        arrays = [leaf.numpy() for leaf in _tensors(arguments)]
        checksums = self._session.comm.agree("compare arguments", checksum_of(arrays))
        if number == 0 or self._session.rank_aware:
            self.has_own_batches = len(set(checksums)) > 1
        else:
            fitting.check_same_data(checksums, number)

    def call(self, arguments: Arguments) -> object:
        """Calls the function; every worker gets the result for the whole arguments."""
        failure = self._step.failure
        args, kwargs = arguments
        try:
            return self._emitted(tuple(args), dict(kwargs))
        except Exception:
            if self._step.failure == failure:
                raise
            # No step was made: the error came while the program was emitted, on each worker.
            return self._emitted(tuple(args), dict(kwargs))

    def _compute(self, arguments: Any) -> object:
        args, kwargs = arguments
        return self._copy(*args, **kwargs)

    def _tell_whole(self, why: str) -> None:
        if not self._has_told:
            self._has_told = True
            verdicts.tell(why, self._session, f"`{self._name}`")


@dataclasses.dataclass
class _Partitioned:
    """The record of a script's `tf.function`: the program of all workers, once there is one."""

    function: LoopFunction | None = None


def call_function(
    function: Any, call: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> object:
    """Calls a script's `tf.function`; a call that trains is partitioned, where it can be.

    Args:
        function: the `tf.function`.
        call: calls it as it is.
        args: the positional arguments.
        kwargs: the arguments by name.
    """
    is_candidate = timing.makes_updates(function) or tf_internals.compiles(function)
    if not (
        is_candidate and _is_of_script(function) and _is_of_loop() and _tensors((args, kwargs))
    ):
        return call(*args, **kwargs)
    record = record_of(function, _Partitioned)
    if record.function is None and not (
        timing.makes_updates(function) or _would_update(function, args, kwargs)
    ):
        return call(*args, **kwargs)
    record.function = record.function or LoopFunction(function, world.current())
    record.function.begin_call((args, kwargs))
    if record.function.has_own_batches:
        return call(*args, **kwargs)
    return record.function.call((args, kwargs))


def _would_update(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a call would make an update, which is found out by tracing it.

    XLA would refuse the exchange of a first call that is made as it is.
    """
    found: list[object] = []

    def note(optimizer: object, gradients: object, variables: object) -> None:
        found.append(optimizer)

    with as_one_process(), noted_gradients.noting_gradients(note, updates=True):
        tf_internals.copy_function(function).get_concrete_function(*args, **kwargs)
    return bool(found)


# The packages whose functions are partitioned as steps of `fit`, or are programs of all workers.
_NOT_OF_SCRIPTS = ("keras", "tensorflow", "tf_keras", "syrtos")


def _is_of_script(function: Any) -> bool:
    module = getattr(function.python_function, "__module__", None) or ""
    return module.partition(".")[0] not in _NOT_OF_SCRIPTS


def _is_of_loop() -> bool:
    """Returns whether a call is one of a loop of the script's, in which each worker has whole batches."""
    session = world.current()
    options, asked = session.options, session.part(AskedReductions)
    return (
        verdicts.is_split(session)
        and not options.servers
        and not options.sync_every
        and asked.all_optimizers
        and not asked.by_tape
        and not splits_in_script()
        and current_step() is None
        and not computes_whole_batch()
        and tf.executing_eagerly()
        and not tf.config.functions_run_eagerly()
        # Gradients of a tape around the call do not pass an exchange.
        and not tf_internals.may_be_recorded()
    )


def _tensors(arguments: Arguments) -> list[tf.Tensor]:
    """Returns the tensors among arguments that may have the rows of a batch."""
    leaves = tf.nest.flatten(arguments)
    return [leaf for leaf in leaves if isinstance(leaf, tf.Tensor) and leaf.shape.rank]
