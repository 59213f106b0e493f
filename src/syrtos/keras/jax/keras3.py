"""The patches of Keras 3 on JAX."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import keras
from jax.core import Tracer
from keras.src.backend.jax import trainer as jax_trainer

from syrtos.comm import world
from syrtos.errors import ConfigurationError
from syrtos.keras import backend, patches, patching
from syrtos.keras.datasets import batches
from syrtos.keras.datasets.planned import Stream
from syrtos.keras.datasets.streams import stream_of
from syrtos.keras.features import finite, registry
from syrtos.keras.jax import (
    distribution,
    finite_steps,
    joining,
    python_calls,
    recurrent,
    script_functions,
    sharded_update,
    step,
    verifying,
)
from syrtos.keras.jax.variables import Jax, gather_array, is_split
from syrtos.keras.patching import Method, Patch
from syrtos.keras.split import verdicts
from syrtos.keras.trainer import methods
from syrtos.topology import check_servers

if TYPE_CHECKING:
    import jax
    import numpy as np
    import numpy.typing as npt
    from keras.src.distribution import distribution_lib

    from syrtos.keras.jax.types import Step, Steps
    from syrtos.keras.protocols import EpochIterator


@functools.cache
def apply_all() -> None:
    """Makes plain scripts compute global batches over all workers.

    Raises:
        ConfigurationError: an option of the run has no meaning with JAX.
    """
    backend.use(Jax())
    session = world.current()
    if session.world.size == 1:
        patching.install([*_of_features(), *_INPUT, methods.FIT, _STEPS, *patches.PATCHES])
        return
    _check_options(session)
    joining.join()
    # Only now: a feature of another package may use JAX.
    patching.install([*_of_features(), *PATCHES, *patches.PATCHES])
    # Sets one over all devices: see `_adopting`.
    keras.distribution.set_distribution(None)
    session.ledger.say(exchange="compiled")


def _of_features() -> list[Patch]:
    registry.refuse_steps("with JAX, where XLA computes them as one program")
    return registry.patches(
        {
            "finite": finite_steps.PATCHES if finite.is_asked() else [],
            "sharding": sharded_update.PATCHES,
        }
    )


def _check_options(session: world.Session) -> None:
    # The backend may come from keras.json.
    check_servers({"KERAS_BACKEND": "jax"}, session.options.servers)
    if session.options.compress != "none":
        raise ConfigurationError(
            "`--compress` has no meaning with KERAS_BACKEND=jax: XLA exchanges inside of its"
            " program. Leave it out, or set KERAS_BACKEND to tensorflow or torch."
        )
    if session.options.batch == "per-worker":
        raise ConfigurationError(
            "`--batch per-worker` has no meaning with KERAS_BACKEND=jax: XLA computes the global"
            " batch as one program over all workers. Leave it out, or set KERAS_BACKEND to"
            " tensorflow or torch. (In a job a sharded channel asks for it: make it"
            " FullyReplicated.)"
        )


# -- trainer ---------------------------------------------------------------------------------------


def _batches(original: Method) -> Method:
    def get_iterator(self: EpochIterator) -> Iterator[object]:
        stream = stream_of(self)
        # Each class of adapters has a type of batches of its own.
        adapter: Any = self.data_adapter
        if world.current().world.size == 1:
            if stream:
                adapter.get_jax_iterator = lambda **_: (data for _, data in stream.shares())
            # Keras 3.16 would give the batches of several steps as one.
            steps, self.steps_per_execution = self.steps_per_execution, 1
            try:
                return original(self)
            finally:
                self.steps_per_execution = steps
        if stream:
            return batches.timed_batches(_planned_batches(stream))
        drawn = map(backend.active().gather_rows, adapter.get_jax_iterator())
        compared = batches.compared_batches(drawn, step.check_sums)
        return batches.timed_batches(jax_trainer._distribute_data(batch) for batch in compared)

    return get_iterator


def _planned_batches(stream: Stream) -> Iterator[object]:
    for number, (samples, share) in enumerate(stream.shares()):
        batch = distribution.join_shares(samples, share)
        if batch is None:
            # No process has a row of it, so no step is made, while the stream has counted a batch.
            stream.leave_out(number)
        else:
            yield batch


def _meeting_steps(original: Method) -> Method:
    # From Keras 3.16 on a step is given as it was written; before, it was compiled already.
    compiles = "out_shardings" in inspect.signature(original).parameters

    # In the original's place, which from 3.16 on compiles several steps in a call as one.
    def make_function(
        self: keras.Model,
        step_function: Step,
        out_shardings: step.StateShardings = None,
        concatenate_outputs: bool = False,
    ) -> Steps:
        session = world.current()
        if compiles and self.jit_compile and not self.run_eagerly:
            # The trainer's `jit`, in whose place `step.compile_step` stands on several workers.
            compiler: Any = jax_trainer
            step_function = compiler.jit(
                step_function, donate_argnums=0, out_shardings=out_shardings
            )
        elif session.world.size > 1 and not isinstance(step_function, step.TimedStep):
            verdicts.tell(
                "it is not compiled",
                session,
                f"`{step_function.__name__}` of {self.name}",
            )
        timed = step.make_timed(step_function)
        together: Step = timed
        if session.options.verifies:
            together = verifying.verify_first_call(self, timed.raw, timed)
        if finite.is_asked():
            together = functools.partial(finite_steps.step_and_tell, self, together)
        return step.make_steps(together, self.steps_per_execution, concatenate_outputs)

    return make_function


# -- distribution and variables --------------------------------------------------------------------


def _putting_tensor(original: Method) -> Method:
    return functools.partial(distribution.put_tensor, original)


def _adopting(original: Method) -> Method:
    def set_distribution(value: distribution_lib.Distribution | None) -> None:
        original(distribution.adopt(value))

    return set_distribution


def _keeping_distribution(original: Method) -> Method:
    def clear_session(*args: object, **kwargs: object) -> None:
        original(*args, **kwargs)
        keras.distribution.set_distribution(None)

    return clear_session


def _gathering_array(original: Method) -> Method:
    def array(
        self: keras.Variable, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[np.generic]:
        # It is one already.
        del copy
        found = gather_array(self.value)
        return found if dtype is None else found.astype(dtype)

    return array


def _gathering_numpy(original: Method) -> Method:
    def convert_to_numpy(x: keras.Variable | jax.Array | npt.ArrayLike) -> npt.NDArray[np.generic]:
        value = getattr(x, "value", x)
        return gather_array(value) if is_split(value) else original(x)

    return convert_to_numpy


def _shuffling_whole(original: Method) -> Method:
    """Wraps Keras's `shuffle`: each device sorts all rows of an array, inside a compiled step."""

    def shuffle(x: jax.Array, axis: int = 0, seed: object = None) -> jax.Array:
        if not (isinstance(x, Tracer) and x.ndim and distribution.is_distributed()):
            return original(x, axis, seed)
        whole = distribution.replicated_sharding()
        # The result too: XLA would else split the sorting as what it is used for.
        return jax.lax.with_sharding_constraint(
            original(jax.lax.with_sharding_constraint(x, whole), axis, seed), whole
        )

    return shuffle


_TRAINER = "keras.src.backend.jax.trainer"
_SAVED = "Variables that are split over processes are gathered where they are read, as for files."

_INPUT = methods.input_of(f"{_TRAINER}:JAXEpochIterator", _batches)
_STEPS = Patch(
    "keras:Model",
    "_make_function",
    _meeting_steps,
    "Steps that are not compiled here, and those of one worker, meet and count too.",
)
PATCHES = [
    Patch(
        _TRAINER,
        "jit",
        lambda _: functools.partial(step.compile_step),
        "Uneven batches are split inside the step, its outputs are gathered.",
    ),
    _STEPS,
    *methods.of_model(step.check_sums),
    *_INPUT,
    Patch(
        _TRAINER,
        "_distribute_data",
        lambda original: functools.partial(distribution.put_batch, original),
        "Every process holds the whole batch; the original takes it for a part, and numbers for rows.",
    ),
    Patch(
        "keras.src.backend.jax.distribution_lib",
        "distribute_tensor",
        _putting_tensor,
        "The original exchanges in every assignment.",
    ),
    Patch(
        "keras.distribution",
        "set_distribution",
        _adopting,
        "A script's own distribution is given whole batches too.",
        everywhere=True,
    ),
    Patch(
        "keras.utils",
        "clear_session",
        _keeping_distribution,
        "It forgets the distribution: each worker would train alone.",
        everywhere=True,
    ),
    Patch(
        "keras.src.backend.jax.random",
        "shuffle",
        _shuffling_whole,
        "XLA ends the process where it sorts along rows that it has split (JAX 0.10).",
    ),
    Patch(
        "jax",
        "jit",
        script_functions.partition_functions_of_script,
        "A function that trains is a program of all workers.",
        everywhere=True,
    ),
    Patch(
        "jax.debug",
        "callback",
        python_calls.debug_callback,
        "What the function keeps would be rank 0's alone.",
    ),
    # GRU's and LSTM's have loops of their own.
    *(
        Patch(
            layer,
            "inner_loop",
            recurrent.inner_loop,
            "XLA exchanges the weights' gradients in each time step.",
        )
        for layer in (
            "keras.layers:RNN",
            "keras.layers:GRU",
            "keras.layers:LSTM",
        )
    ),
    Patch("keras:Variable", "__array__", _gathering_array, _SAVED),
    Patch(
        "keras.src.backend.jax.core|keras.src.backend.jax.ops.core",
        "convert_to_numpy",
        _gathering_numpy,
        _SAVED,
        everywhere=True,
    ),
]
