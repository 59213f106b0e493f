"""`syrtos verify` on JAX: one process too computes a function's first step, and both are compared.

Both begin from the same state. All workers compute the whole batch as one program, so that no rule
has to be found: what differs is rounding, or a defect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
import numpy.typing as npt
from keras import distribution as distribution_lib
from keras.src.backend.common import global_state

from syrtos.comm import world
from syrtos.keras.jax import distribution, sorting
from syrtos.keras.jax.variables import gather_array
from syrtos.keras.replica import state
from syrtos.keras.split import comparison
from syrtos.keras.split.comparison import Row
from syrtos.keras.split.verdicts import Verifying

if TYPE_CHECKING:
    import keras

    from syrtos.keras.jax.types import State, Step

    # What a step returns, its state after it, and the gradients that its optimizer was given.
    Results = tuple[object, State, Sequence[jax.Array]]
    # The same in the host's memory.
    Values = Sequence[npt.NDArray[np.generic]]
    HostResults = tuple[object, Sequence[Values], Values]


def verify_first_call(model: keras.Model, raw: Step, step: Step) -> Step:
    """Wraps a step so that its first call is compared with one process.

    Args:
        model: the model whose step it is.
        raw: the step as the script, or Keras, wrote it.
        step: the step over the devices of all workers.
    """
    verifying, is_first = Verifying(model, world.sharing()), True

    def call(state_before: State, data: object) -> tuple[object, State]:
        nonlocal is_first
        if is_first:
            # First, for the step takes the memory of its state away.
            _compare(model, raw, state_before, data)
        is_first = False
        # After some calls the function's data counts as at its end: the run is to verify, not to
        # train.
        verifying.count_call()
        return step(state_before, data)

    return call


def _compare(model: keras.Model, raw: Step, before: State, data: object) -> None:
    """Computes the step both ways, without an effect on the model, and notes all differences."""
    step = _with_gradients(model, raw)
    local = jax.tree.map(gather_array, (before, data))
    with _one_process():
        one = jax.jit(lambda *given: step(*given))(*local)

    def on_all(state_before: State, rows: object) -> Results:
        return sorting.compute_split(step, state_before, rows)

    together = jax.jit(on_all, out_shardings=distribution.replicated_sharding())(before, data)
    session = world.sharing()
    rows = [
        *_rows(
            model,
            raw.__name__,
            local[0],
            jax.tree.map(np.asarray, one),
            jax.tree.map(np.asarray, together),
        )
    ]
    bound = comparison.bound_of(min(map(_precision, jax.tree.leaves(one))))
    Verifying.note(rows, session, model.name, raw.__name__, bound)


def _precision(value: jax.Array) -> int:
    # NumPy calls bfloat16 a void type.
    return value.dtype.itemsize if value.dtype.kind in "fV" else 4


def _with_gradients(model: keras.Model, raw: Step) -> Callable[[State, object], Results]:
    """Returns the step with a third result: the gradients that its optimizer was given."""

    def step(before: State, data: object) -> Results:
        found: list[jax.Array] = []
        optimizer: keras.Optimizer | None = getattr(model, "optimizer", None)
        if optimizer is None:
            return *raw(before, data), found
        original = optimizer.stateless_apply

        def noting(
            optimizer_variables: Sequence[jax.Array],
            grads: Sequence[jax.Array],
            trainable_variables: Sequence[jax.Array],
        ) -> tuple[list[jax.Array | None], list[jax.Array | None]]:
            found.extend(grads)
            return original(optimizer_variables, grads, trainable_variables)

        optimizer.stateless_apply = noting
        try:
            logs, after = raw(before, data)
        finally:
            # That of the class is to be found again.
            del optimizer.stateless_apply
        return logs, after, found

    return step


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """Hides the distribution from Keras, within the context; new arrays are this process's own."""
    found = distribution_lib.distribution()
    # Not `set_distribution`, in whose place syrtos sets one over all devices where it is given
    # None.
    global_state.set_global_attribute("distribution", None)
    try:
        with jax.default_device(jax.local_devices()[0]):
            yield
    finally:
        global_state.set_global_attribute("distribution", found)


def _rows(
    model: keras.Model, name: str, before: Sequence[Values], one: HostResults, together: HostResults
) -> Iterator[Row]:
    """Yields comparisons of a step's results: gradients, numbers or outputs, and changed variables.

    Variables that follow from the gradients (`_follows`) are left out.
    """
    trained = [state.name_of(variable) for variable in model.trainable_variables]
    titles = [
        trained[index] if index < len(trained) else f"gradient {index + 1}"
        for index in range(len(one[2]))
    ]
    yield from comparison.compare_gradients(titles, one[2], together[2])
    logs = jax.tree.leaves(one[0])
    names = comparison.names_of(one[0], logs)
    for key, a, b in zip(names, logs, jax.tree.leaves(together[0]), strict=True):
        yield comparison.compare_values("log" if name != "predict_step" else "output", key, a, b)
    groups = [model.trainable_variables, model.non_trainable_variables]
    groups += [model.optimizer.variables] if name == "train_step" else []
    groups += [model.metrics_variables] if name != "predict_step" else []
    for variables, *values in zip(groups, before, one[1], together[1], strict=False):
        for variable, start, a, b in zip(variables, *values, strict=False):
            if not np.array_equal(start, a, equal_nan=start.dtype.kind == "f") and not _follows(
                variable, model, one[2]
            ):
                yield comparison.compare_values("variable", state.name_of(variable), a, b, start)


def _follows(variable: keras.Variable, model: keras.Model, gradients: Values) -> bool:
    """Returns whether a variable follows from gradients, which are compared themselves."""
    # An optimizer may enlarge the rounding of a gradient near zero.
    if not gradients:
        return False
    return any(variable is one for one in [*model.trainable_variables, *model.optimizer.variables])
