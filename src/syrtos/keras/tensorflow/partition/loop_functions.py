"""The `tf.function`s of a script's own loop: those that train are partitioned as steps of `fit` are.

A loop without a strategy gives each worker whole batches. A function in which an optimizer makes an
update is one program of all workers: each computes its rows of the arguments, and has the results
of the whole function. Any other is computed whole by every worker, and exchanges nothing: a script
may call it on one worker alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.errors import SyrtosError
from syrtos.keras import fitting
from syrtos.keras.datasets.checksums import checksum_of, is_compared
from syrtos.keras.split import noted_gradients, verdicts
from syrtos.keras.tensorflow import tf_internals, tf_internals_emission
from syrtos.keras.tensorflow.assignments import (
    as_one_process,
    computes_whole_batch,
    current_step,
)
from syrtos.keras.tensorflow.partition import error_lines
from syrtos.keras.tensorflow.partition.batch_rows import rows_among
from syrtos.keras.tensorflow.partition.step import (
    FEW_ROWS,
    GradientTerms,
    PartitionedStep,
    TracedStep,
    why_whole,
)
from syrtos.keras.tensorflow.strategy import is_of_framework, splits_in_script
from syrtos.keras.trainer import timing
from syrtos.keras.updates import AskedReductions
from syrtos.records import read_record, record_of


@dataclasses.dataclass
class _Program:
    """A trace of a function.

    Attributes:
        key: the function's own trace, by whose identity the program is found.
        concrete: computes the whole function.
        makes_updates: whether an optimizer makes an update in it.
        emitted: this worker's part, which takes the tensors that ``concrete`` takes; None where
            every worker computes it whole.
    """

    key: Any
    concrete: Any
    makes_updates: bool
    emitted: Callable[..., object] | None = None


class LoopFunction:
    """A `tf.function` of a script's own loop.

    Attributes:
        is_plain: whether it is called as it is, because it does not train.
        programs: its traces so far, by the identities of the concrete functions.
    """

    def __init__(self, function: Any, session: Session) -> None:
        """
        Args:
            function: the script's.
            session: the workers.
        """
        self.is_plain = False
        self.programs: dict[int, _Program] = {}
        self._session = session
        self._calls, self._has_told = 0, False
        self._name = getattr(function.python_function, "__name__", "function")
        self._is_compiled = tf_internals.is_compiled_function(function)
        # Called in place of the function where workers have batches of their own: the function's
        # own traces hold no exchange.
        self._on_own: Any = None

    def call(
        self, function: Any, call: Callable[..., object], args: Sequence[Any], kwargs: Any
    ) -> object:
        """Calls the function; every worker gets the result for the whole arguments.

        Args:
            function: the script's. A record must not refer to its object.
            call: calls the function as it is.
            args: the positional arguments.
            kwargs: the arguments by name.

        Raises:
            DataError: the workers were given equal arguments so far, and unequal ones now.
        """
        program = self._program_of(function, args, kwargs)
        if self.is_on_own:
            return self.call_on_own(function, args, kwargs)
        if not program.makes_updates:
            self.is_plain = all(not one.makes_updates for one in self.programs.values())
            return call(*args, **kwargs)
        inputs = tf_internals.flat_inputs(function, program.concrete, args, kwargs)
        if not self._have_equal(inputs):
            return self.call_on_own(function, args, kwargs)
        if program.emitted is None:
            return call(*args, **kwargs)
        try:
            with error_lines.naming_lines([program.concrete.graph]):
                return program.emitted(*inputs)
        except _NotEmittedError:
            # No step was made: the error came while the program was emitted, on each worker.
            program.emitted = None
            return call(*args, **kwargs)

    @property
    def is_on_own(self) -> bool:
        """True where the workers call it with batches of their own."""
        return self._on_own is not None

    def call_on_own(self, function: Any, args: Sequence[Any], kwargs: Any) -> object:
        """Calls a copy of the function in which optimizers exchange gradients."""
        self._on_own = self._on_own or _copy_on_own(function)
        return self._on_own(*args, **kwargs)

    def _program_of(self, function: Any, args: Sequence[Any], kwargs: Any) -> _Program:
        """Returns the trace of the function for arguments, as one process makes it."""
        terms = GradientTerms(self._session)
        before = function.experimental_get_tracing_count()
        concrete = _trace(function, args, kwargs, terms)
        known = self.programs.get(id(concrete))
        if known is not None:
            return known
        key = concrete
        if function.experimental_get_tracing_count() == before:
            # It was traced when nobody looked at the optimizers, e.g. under a tape.
            concrete = _trace(tf_internals.copy_function(function), args, kwargs, terms)
        program = self.programs[id(key)] = _Program(key, concrete, terms.has_update)
        trains = program.makes_updates
        reads_own = trains and self._session.rank_aware and _reads_data(concrete.graph)
        # The trace itself may show that the script exchanges, or splits, by itself.
        if reads_own or not _is_of_loop(self._session):
            self._on_own = _copy_on_own(function)
        elif trains:
            program.emitted = self._function_of(program, terms)
        return program

    def _function_of(self, program: _Program, terms: GradientTerms) -> Callable[..., object]:
        """Returns the `tf.function` of this worker's part of a program."""
        step = PartitionedStep(
            lambda _: None, self._session, True, self._tell_whole, compiles=self._is_compiled
        )
        traced = TracedStep(program.concrete, terms.variables, True)

        def emit(*inputs: tf.Tensor) -> object:
            rows = rows_among(list(inputs), self._session)
            if why := step.failure or why_whole(rows, False):
                if why != FEW_ROWS:
                    self._tell_whole(why)
                raise _NotEmittedError
            try:
                return step.emit(traced, rows)
            except SyrtosError:
                raise
            except Exception as error:
                self._tell_whole(step.failure)
                raise _NotEmittedError from error

        return tf_internals.function_of_tensors(emit, program.concrete)

    def _have_equal(self, inputs: Sequence[tf.Tensor]) -> bool:
        """Returns whether all workers have the same inputs; they are compared in some calls."""
        number, self._calls = self._calls, self._calls + 1
        # A script that knows its rank may take its own batches from any call on.
        if not (is_compared(number) or self._session.rank_aware):
            return True
        arrays = [np.asarray(i.numpy()) for i in inputs if i.dtype not in (tf.resource, tf.variant)]
        checksums = self._session.comm.agree("compare arguments", checksum_of(arrays))
        if len(set(checksums)) == 1:
            return True
        if number and not self._session.rank_aware:
            fitting.check_same_data(checksums, number)
        return False

    def _tell_whole(self, why: str) -> None:
        if not self._has_told:
            self._has_told = True
            verdicts.tell(why, self._session, f"`{self._name}`")


class _NotEmittedError(Exception):
    """Ends the emission of a program that every worker is to compute whole."""


def _trace(function: Any, args: Sequence[Any], kwargs: Any, terms: GradientTerms) -> Any:
    with as_one_process(), noted_gradients.noting_gradients(terms.note, updates=True):
        return function.get_concrete_function(*args, **kwargs)


def _reads_data(graph: Any) -> bool:
    """Returns whether a graph takes data by itself, of which each worker may have its own."""
    return tf_internals_emission.has_operation(graph, _READING)


# Operations that take data from a pipeline or from Python.
_READING = frozenset(
    ("EagerPyFunc", "IteratorGetNext", "IteratorGetNextAsOptional", "PyFunc", "PyFuncStateless")
)


@dataclasses.dataclass
class LoopRecord:
    """The record of a script's `tf.function`.

    Attributes:
        function: what is called in its place, once it was called.
        is_on_own: whether it is a copy for batches of a worker's own, which is called as it is.
    """

    function: LoopFunction | None = None
    is_on_own: bool = False


def _copy_on_own(function: Any) -> Any:
    """Returns a copy of a function in which optimizers exchange gradients."""
    copy = tf_internals.copy_function(function)
    record_of(copy, LoopRecord).is_on_own = True
    return copy


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
    if not world.is_initialized() or is_of_framework(function) or not _have_rows((args, kwargs)):
        return call(*args, **kwargs)
    session, record = world.current(), read_record(function, LoopRecord)
    if record.is_on_own:
        return call(*args, **kwargs)
    # The function's own traces hold no exchange once it was called in such a loop.
    if record.function is not None and (record.function.is_on_own or splits_in_script()):
        return record.function.call_on_own(function, args, kwargs)
    if not _is_of_loop(session):
        return call(*args, **kwargs)
    record = record_of(function, LoopRecord)
    record.function = record.function or LoopFunction(function, session)
    if record.function.is_plain and not timing.makes_updates(function):
        return call(*args, **kwargs)
    return record.function.call(function, call, args, kwargs)


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


def _have_rows(arguments: object) -> bool:
    """Returns whether there are tensors or arrays among arguments that may have a batch's rows."""
    leaves = tf.nest.flatten(arguments, expand_composites=True)
    return any(isinstance(leaf, tf.Tensor | np.ndarray) and leaf.ndim for leaf in leaves)
