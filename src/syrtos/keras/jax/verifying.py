"""`syrtos verify` on JAX: the first step of a function is computed by one process too, and both are compared.

Both begin from the same state. All workers compute the whole batch as one program, so that no rule has to be found:
what differs is rounding, or a defect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from keras.src.backend.common import global_state
from keras.src.distribution import distribution_lib

from syrtos.comm import world
from syrtos.keras.jax import distribution
from syrtos.keras.jax.variables import whole
from syrtos.keras.replica import state
from syrtos.keras.split import comparison, trial_step
from syrtos.keras.split.plan import Row, SplitPlan
from syrtos.keras.split.verdicts import Verifying

Step = Callable[[Any, Any], tuple[Any, Any]]


def verify_first_call(model: Any, raw: Step, step: Step) -> Step:
    """Wraps a step so that its first call is compared with one process.

    After some calls the function's data counts as at its end.

    Args:
        model: the model whose step it is.
        raw: the step as the script, or Keras, wrote it.
        step: the step over the devices of all workers.
    """
    verifying, is_first = Verifying(model, world.sharing()), True

    def call(state_before: Any, data: Any) -> tuple[Any, Any]:
        nonlocal is_first
        if is_first:
            _compare(model, raw, state_before, data)
        is_first = False
        verifying.count_call()
        return step(state_before, data)

    return call


def _compare(model: Any, raw: Step, before: Any, data: Any) -> None:
    """Computes the step both ways, without an effect on the model, and notes all differences."""
    step = _with_gradients(model, raw)
    local = jax.tree.map(whole, (before, data))
    with _one_process():
        one = jax.jit(lambda *given: step(*given))(*local)

    def on_all(state_before: Any, rows: Any) -> Any:
        return step(state_before, distribution.split(rows))

    together = jax.jit(on_all, out_shardings=distribution.replicated_sharding())(before, data)
    session = world.sharing()
    rows = [*_rows(model, raw.__name__, local[0], jax.tree.map(np.asarray, one), jax.tree.map(np.asarray, together))]
    Verifying.note(
        SplitPlan(rows=rows),
        session,
        model.name,
        raw.__name__,
        comparison.bound_of(min(map(_precision, jax.tree.leaves(one)))),
    )


def _precision(value: Any) -> int:
    return value.dtype.itemsize if value.dtype.kind in "fV" else 4


def _with_gradients(model: Any, raw: Step) -> Callable[[Any, Any], tuple[Any, Any, Sequence[Any]]]:
    """Returns the step with a third result: the gradients that its optimizer was given."""

    def step(before: Any, data: Any) -> tuple[Any, Any, Sequence[Any]]:
        found: list[Any] = []
        optimizer = getattr(model, "optimizer", None)
        original = getattr(optimizer, "stateless_apply", None)

        def noting(slots: Any, gradients: Any, variables: Any) -> Any:
            found.extend(gradients)
            assert original is not None
            return original(slots, gradients, variables)

        if original is not None:
            optimizer.stateless_apply = noting  # pyright: ignore[reportOptionalMemberAccess]
        try:
            logs, after = raw(before, data)
        finally:
            if original is not None:
                del optimizer.stateless_apply  # pyright: ignore[reportOptionalMemberAccess]
        return logs, after, found

    return step


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """Hides the distribution from Keras, within the context; new arrays are this process's own."""
    found = distribution_lib.distribution()
    global_state.set_global_attribute("distribution", None)
    try:
        with jax.default_device(jax.local_devices()[0]):
            yield
    finally:
        global_state.set_global_attribute("distribution", found)


def _rows(model: Any, name: str, before: Any, one: Any, together: Any) -> Iterator[Row]:
    """Yields the comparisons of what a step gives: gradients, numbers or outputs, and variables that it changes.

    Variables that follow from the gradients (`_follows`) are left out.
    """
    trained = [state.name_of(variable) for variable in model.trainable_variables]
    for index, (a, b) in enumerate(zip(one[2], together[2], strict=True)):
        yield comparison.compare_values(
            "gradient", trained[index] if index < len(trained) else f"gradient {index + 1}", a, b
        )
    logs = jax.tree.leaves(one[0])
    names = trial_step.names_of(one[0], logs)
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


def _follows(variable: Any, model: Any, gradients: Sequence[Any]) -> bool:
    """Returns whether a variable follows from gradients, which are compared themselves.

    An optimizer may enlarge the rounding of a gradient near zero.
    """
    if not gradients:
        return False
    return any(variable is one for one in [*model.trainable_variables, *model.optimizer.variables])
