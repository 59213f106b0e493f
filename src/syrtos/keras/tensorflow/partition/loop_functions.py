"""The `tf.function`s of a script's own loop: those that train are partitioned as steps of `fit` are.

A loop without a strategy gives each worker whole batches. A function in which an optimizer makes an
update is one program of all workers: each computes its rows of the arguments, and has the results
of the whole function. Any other is computed whole by every worker, and exchanges nothing: a script
may call it on one worker alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.keras import fitting
from syrtos.keras.datasets.checksums import checksum_of, is_compared
from syrtos.keras.replica.updates import AskedReductions
from syrtos.keras.split import verdicts
from syrtos.keras.tensorflow import tf_internals
from syrtos.keras.tensorflow.assignments import computes_whole_batch, current_step
from syrtos.keras.tensorflow.partition.step import PartitionedStep, rows_among
from syrtos.keras.tensorflow.strategy import is_of_framework, splits_in_script
from syrtos.records import record_of


class _OwnBatchesError(Exception):
    """Ends the tracing of a function whose arguments are not the same on all workers."""


class LoopFunction:
    """A `tf.function` of a script's own loop.

    Attributes:
        has_own_batches: whether it trains, and the workers call it with batches of their own.
        emitted: this worker's part; it takes the positional arguments, and those by name.
    """

    def __init__(self, function: Any, session: Session) -> None:
        """
        Args:
            function: the script's.
            session: the workers.
        """
        self.has_own_batches = False
        self._session, self._has_told = session, False
        self._calls, self._arguments, self._is_training = 0, ((), {}), False
        self._name = getattr(function.python_function, "__name__", "function")
        self._new_copy = functools.partial(
            tf_internals.copy_function, tf_internals.copy_function(function)
        )
        self._step = PartitionedStep(self._compute, session, True, self._tell_whole)
        self.emitted = tf_internals.function_like(function, self._emit)

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """Calls the function; every worker gets the result for the whole arguments.

        Raises:
            DataError: the workers were given equal arguments so far, and unequal ones now.
        """
        self._arguments = args, kwargs
        if self._is_training:
            self._compare()
        failure = self._step.failure
        try:
            return self.emitted(*args, **kwargs)
        except Exception:
            if self._step.failure == failure:
                raise
            # No step was made: the error came while the program was emitted, on each worker.
            return self.emitted(*args, **kwargs)

    def _compare(self) -> None:
        """Compares the arguments of some calls over the workers. All workers call this together."""
        number, self._calls = self._calls, self._calls + 1
        # A script that knows its rank may take its own batches from any call on.
        if not (is_compared(number) or self._session.rank_aware):
            return
        arrays = [np.asarray(leaf) for leaf in _tensors(self._arguments)]
        checksums = self._session.comm.agree("compare arguments", checksum_of(arrays))
        if len(set(checksums)) > 1 and (number == 0 or self._session.rank_aware):
            self.has_own_batches = True
            raise _OwnBatchesError
        fitting.check_same_data(checksums, number)

    def _emit(self, *args: Any, **kwargs: Any) -> object:
        """Adds this worker's part of a call to the graph of `emitted`."""
        rows = rows_among((args, kwargs), self._session)
        program = self._step.trace(rows)
        if not program.makes_updates or splits_in_script():
            return program.concrete(*rows.tensors)
        if not self._is_training:
            self._is_training = True
            with tf.init_scope():
                self._compare()
        return self._step.emit_or_compute(program, rows)

    def _compute(self, arguments: Any) -> object:
        args, kwargs = arguments
        # What an optimizer is given is seen while the function is traced, so it is traced each time.
        return self._new_copy()(*args, **kwargs)

    def _tell_whole(self, why: str) -> None:
        if not self._has_told:
            self._has_told = True
            verdicts.tell(why, self._session, f"`{self._name}`")


@dataclasses.dataclass
class LoopRecord:
    """The record of a script's `tf.function`: what is called in its place, once it was called."""

    function: LoopFunction | None = None


def call_function(
    function: Any, call: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> object:
    """Calls a `tf.function`; where it is one of a script's own loop that trains, it is partitioned.

    Args:
        function: the `tf.function`.
        call: calls it as it is.
        args: the positional arguments.
        kwargs: the arguments by name.
    """
    if not world.is_initialized() or is_of_framework(function) or not _tensors((args, kwargs)):
        return call(*args, **kwargs)
    session = world.current()
    if not _is_of_loop(session):
        return call(*args, **kwargs)
    record = record_of(function, LoopRecord)
    record.function = record.function or LoopFunction(function, session)
    if not record.function.has_own_batches:
        with contextlib.suppress(_OwnBatchesError):
            return record.function.call(args, kwargs)
    return call(*args, **kwargs)


def _is_of_loop(session: Session) -> bool:
    """Returns whether a call is one of a loop of the script's, in which each worker has whole batches."""
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


def _tensors(arguments: object) -> list[Any]:
    """Returns the tensors and arrays among arguments that may have the rows of a batch."""
    leaves = tf.nest.flatten(arguments)
    return [leaf for leaf in leaves if isinstance(leaf, tf.Tensor | np.ndarray) and leaf.ndim]
