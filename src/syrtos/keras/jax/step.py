"""A step of `fit`, `evaluate` or `predict`, compiled over the devices of all workers."""

from __future__ import annotations

import collections
import itertools
import zlib
from typing import TYPE_CHECKING

import jax

from syrtos.comm import world
from syrtos.comm.communicator import share_of
from syrtos.errors import DataError
from syrtos.keras import fitting
from syrtos.keras.jax import collectives, distribution, joining, sorting
from syrtos.keras.jax.variables import await_arrays, gather_array, is_split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from jax.sharding import Sharding

    from syrtos.keras.jax.types import State, Step, Steps

    # Those of a step's outputs and of the state after it.
    StateShardings = Sequence[Sequence[Sharding] | None] | None
    # The shape and the dtype of each leaf of a batch.
    Shapes = tuple[tuple[tuple[int, ...], np.dtype[np.generic]], ...]

# Steps that a device may have been given and not ended, when it is given the next one.
_IN_FLIGHT = 2


def compile_step(
    step: Step,
    donate_argnums: int | Sequence[int] | None = None,
    out_shardings: StateShardings = None,
) -> Step:
    """Compiles a step of a trainer in place of `jax.jit`, the script's own steps too.

    Uneven batches are split inside, and outputs (logs, predictions) are gathered: whole on each
    worker.
    """
    # No step: a function of Keras's that concatenates the outputs of several.
    if out_shardings is None:
        return jax.jit(step, donate_argnums=donate_argnums)

    def on_all_devices(state: State, data: object) -> tuple[object, State]:
        with distribution.tracing_step():
            return sorting.compute_split(step, state, data)

    replicated = distribution.replicated_sharding()
    # Keras has no shardings for variables that the step is yet to make, as those of a metric that
    # is called in it for the first time.
    state = tuple(group or replicated for group in out_shardings[1] or ())
    return TimedStep(
        jax.jit(on_all_devices, donate_argnums=donate_argnums, out_shardings=(replicated, state)),
        step,
    )


def make_timed(function: Step) -> TimedStep:
    """Returns a step as workers make it together, also one that is not compiled.

    A step is not compiled with `run_eagerly` or `jit_compile=False`. Each worker computes it on
    whole batches.
    """
    if isinstance(function, TimedStep):
        return function
    if world.current().world.size == 1:  # no output is split
        return TimedStep(function, function)

    def on_whole_batch(state: State, data: object) -> tuple[object, State]:
        outputs, state = function(state, distribution.make_whole(data))
        # They are split where weights are.
        return jax.tree.map(_gather_output, outputs), state

    return TimedStep(on_whole_batch, function)


def _gather_output(output: jax.Array) -> jax.Array | np.ndarray:
    return gather_array(output) if is_split(output) else output


def make_steps(step: Step, count: int, concatenates: bool) -> Steps:
    """Returns a function that takes a state and an iterator of batches, and makes ``count`` steps.

    It makes fewer where the data ends. Its outputs are those of the last step, or those of all
    steps, where ``concatenates`` is true.
    """

    def make_them(state: State, iterator: Iterator[object]) -> tuple[object, State]:
        outputs, state = step(state, next(iterator))
        made = [outputs]
        for data in itertools.islice(iterator, count - 1):
            outputs, state = step(state, data)
            made.append(outputs)
        if concatenates and len(made) > 1:
            outputs = jax.tree.map(lambda *parts: jax.numpy.concatenate(parts), *made)
        return outputs, state

    return make_them


class TimedStep:
    """A step whose time and samples the ledger counts. Workers meet before each call.

    Attributes:
        raw: the step as the script, or Keras, wrote it.
    """

    def __init__(self, function: Step, raw: Step) -> None:
        self._function = function
        self.raw = raw
        self._traced: set[Shapes] = set()
        self._in_flight: collections.deque[object] = collections.deque()

    def __call__(self, state: State, data: object) -> tuple[object, State]:
        joining.StepCount.made += 1
        session = world.sharing()
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(data))
        if session.world.size > 1:
            # A worker that does something else, or is late, is named here: XLA's own exchange would
            # wait for ever.
            _agree_on_shapes(shapes)
        # The last leaf with rows is a target or a weight, where there are any.
        rows = [shape[0] for shape, _ in shapes if shape] or [1]
        start, stop = share_of(rows[-1], session.world.rank, session.world.size)
        session.ledger.count(stop - start)
        # XLA compiles a step for each kind of batch: that is no computation of the step.
        kind = "compute" if shapes in self._traced else "trace"
        with session.ledger.span(kind), collectives.counting(session):
            # An earlier step must have ended, so that its time counts as computation, and not as
            # that of whatever waits for its results. One step may stay in flight, which a callback
            # that needs the logs of each step waits for.
            if len(self._in_flight) >= _IN_FLIGHT:
                await_arrays(self._in_flight.popleft())
            self._traced.add(shapes)
            logs, state = self._function(state, data)
            self._in_flight.append(logs)
        return logs, state


def _agree_on_shapes(shapes: Shapes) -> None:
    comm = world.sharing().comm
    digests = comm.agree("step", float(zlib.crc32(repr(shapes).encode())))
    if len(set(digests)) > 1:
        everyone = comm.allgather_object([list(shape) for shape, _ in shapes])
        raise DataError(
            "Workers read batches of different shapes: "
            + "; ".join(f"rank {rank}: {found}" for rank, found in enumerate(everyone))
            + ". Every worker must read the same global batches."
        )


def check_sums(sums: list[float], number: int) -> None:
    """Compares the checksums of what workers read of a batch.

    Raises:
        DataError: they differ; or they are equal, where the script has sharded the data itself and
            each worker should read rows of its own.
    """
    if not distribution.has_own_rows():
        fitting.check_same_data(sums, number)
    elif len(set(sums)) == 1:
        raise DataError(
            f"All workers read the same rows in batch {number}, but the script's distribution says"
            " `auto_shard_dataset=False`: that each reads rows of its own. They would be trained"
            " on several times. Leave the argument out, or shard the data by"
            " `jax.process_index()`."
        )
