"""`--on-nan` on JAX, where XLA applies gradients inside of its program.

The program itself decides what becomes of gradients that are not finite, and tells the host what it
has found.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import keras
from jax import numpy as jnp

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.errors import NonFiniteError
from syrtos.keras import keras_internals
from syrtos.keras.features import finite
from syrtos.keras.patching import Method, Patch
from syrtos.scopes import set_within

if TYPE_CHECKING:
    from syrtos.keras.jax.types import State, Step
    from syrtos.keras.protocols import Variable


# Arrays in tuples, lists and dictionaries.
_Tree = TypeVar("_Tree")


class _Finding(NamedTuple):
    """The finding about the gradients of one update.

    Attributes:
        flags: for each gradient whether all its numbers are finite.
        updates: the number of updates before.
    """

    flags: jax.Array
    updates: jax.Array


# The findings about gradients of the training step traced or run; None outside of one.
_findings: ContextVar[list[_Finding] | None] = ContextVar("findings", default=None)


class _CheckedVariables:
    """The variables of the gradients that were looked at last."""

    def __init__(self, _session: Session) -> None:
        self.variables: Sequence[Variable] = ()


class _CheckedLogs(NamedTuple):
    """The result of a training step: its logs, and what was found of its gradients."""

    logs: object
    found: list[_Finding]


def _noting(original: Method) -> Method:
    def stateless_apply(
        self: keras.Optimizer,
        optimizer_variables: Sequence[jax.Array],
        grads: Sequence[jax.Array | None],
        trainable_variables: Sequence[jax.Array],
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        findings = _findings.get()
        if findings is not None:
            pairs = [
                (g, v)
                for g, v in zip(grads, keras_internals.trained_by(self), strict=True)
                if g is not None
            ]
            world.part(_CheckedVariables).variables = [variable for _, variable in pairs]
            flags = jnp.stack([jnp.all(jnp.isfinite(gradient)) for gradient, _ in pairs])
            updates = dict(zip(map(id, self.variables), optimizer_variables, strict=True))[
                id(keras_internals.updates_of(self))
            ]
            # Where gradients are accumulated, the variable counts the steps.
            findings.append(_Finding(flags, updates // (self.gradient_accumulation_steps or 1)))
        return original(self, optimizer_variables, grads, trainable_variables)

    return stateless_apply


def _without_notes(original: Method) -> Method:
    def stateless_apply(
        self: keras.Optimizer, *args: object, **kwargs: object
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        # It calls the same method of its inner optimizer, which must not note anything then.
        with set_within(_findings, None):
            return original(self, *args, **kwargs)

    return stateless_apply


def _making(original: Method) -> Method:
    def make_train_function(self: keras.Model, force: bool = False) -> None:
        before = self.__dict__.get("train_step")
        object.__setattr__(
            self, "train_step", functools.partial(_make_or_undo, self, self.train_step)
        )
        try:
            original(self, force)
        finally:
            object.__delattr__(self, "train_step")
            if before is not None:
                object.__setattr__(self, "train_step", before)

    return make_train_function


def _make_or_undo(
    model: keras.Model, step: Step, state: State, data: object
) -> tuple[_CheckedLogs, State]:
    """Makes a training step whose state and logs stay as before if a gradient is not finite.

    Beside its logs it returns what was found of the gradients.
    """
    found: list[_Finding] = []
    with set_within(_findings, found):
        logs, changed = step(state, data)
    good = functools.reduce(
        jnp.logical_and, [jnp.all(flags) for flags, _ in found], jnp.asarray(True)
    )

    # Chosen in the program itself: the host learns of the gradients only once the step is over, and
    # the state before it is gone by then (its memory is donated).
    def choose(new: _Tree, old: _Tree) -> _Tree:
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old)

    return _CheckedLogs(choose(logs, _results_before(model, state, logs)), found), choose(
        changed, state
    )


def _results_before(model: keras.Model, state: State, logs: object) -> object:
    """Returns the logs without this batch."""
    with keras.StatelessScope(
        state_mapping=list(zip(model.metrics_variables, state[-1], strict=True))
    ):
        return finite.results_of_left_out_step(model, logs)


def step_and_tell(
    model: keras.Model, step_function: Step, state: State, data: object
) -> tuple[object, State]:
    """Makes a step and tells the host what was found of its gradients.

    Evaluations have nothing to tell.

    Raises:
        NonFiniteError: training must not go on. The model has its state again, which a step takes
            away from it.
    """
    outputs, state = step_function(state, data)
    if not isinstance(outputs, _CheckedLogs):
        return outputs, state
    logs, found = outputs
    try:
        for flags, updates in found:
            # Gradients are of the global batch here: which worker's rows made them so is not known.
            finite.look(
                None,
                world.part(_CheckedVariables).variables,
                flags.tolist(),
                flags.tolist(),
                int(updates) + 1,
            )
    except NonFiniteError:
        keras_internals.set_state(model, state)
        raise
    return logs, state


_OPTIMIZER = "keras:Optimizer"
_SCALING = "keras.optimizers:LossScaleOptimizer"
_TRAINER = "keras:Model"
_IN_PROGRAM = "XLA applies gradients inside of its program, which must leave them out itself."

PATCHES = [
    Patch(_OPTIMIZER, "stateless_apply", _noting, "Where a step meets its gradients."),
    Patch(_SCALING, "stateless_apply", _without_notes, "It leaves out updates itself."),
    Patch(_TRAINER, "make_train_function", _making, _IN_PROGRAM),
]
