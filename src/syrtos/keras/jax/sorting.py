"""Sorting inside of steps: XLA ends the process where it sorts rows that it has split (JAX 0.10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import jax
from jax.core import Tracer
from jax.extend.core import jaxpr_as_fun

from syrtos.keras.jax import distribution
from syrtos.keras.patching import Method

if TYPE_CHECKING:
    from syrtos.keras.jax.types import State

_Tree = TypeVar("_Tree")


def sort_whole(original: Method) -> Method:
    """Wraps `jax.lax.sort`, and so sorting and shuffling: each device sorts all rows of a step."""

    def sort(operand: object, *args: object, **kwargs: object) -> object:
        arrays = jax.tree.leaves(operand)
        if not (distribution.is_distributed() and any(isinstance(a, Tracer) for a in arrays)):
            return original(operand, *args, **kwargs)
        # The result too: XLA would else split the sorting as what it is used for.
        return _whole(original(_whole(operand), *args, **kwargs))

    return sort


def _whole(tree: _Tree) -> _Tree:
    whole = distribution.replicated_sharding()
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, whole), tree)


def compute_split(step: Callable[[State, object], _Tree], state: State, data: object) -> _Tree:
    """Computes a step on a batch whose rows are split, or on a whole one where it sorts uneven rows."""
    if distribution.has_even_rows(data):
        return step(state, distribution.split_rows(data))
    # Under `jax.vmap` a sort can't be told to take all rows. The step is traced once: it may make
    # variables.
    program, shapes = jax.make_jaxpr(step, return_shape=True)(state, data)
    rows = data if _sorts(program.jaxpr) else distribution.split_rows(data)
    results = jaxpr_as_fun(program)(*jax.tree.leaves((state, rows)))
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def _sorts(program: Any) -> bool:
    """Returns whether a traced program (`jax.core.Jaxpr`), or a part of it, sorts."""
    return any(
        equation.primitive.name == "sort" or any(map(_sorts, _programs_in(equation.params)))
        for equation in program.eqns
    )


def _programs_in(parameters: dict[str, Any]) -> list[Any]:
    """Returns the programs among an equation's parameters, such as the body of a loop."""
    found = [getattr(leaf, "jaxpr", leaf) for leaf in jax.tree.leaves(list(parameters.values()))]
    return [leaf for leaf in found if hasattr(leaf, "eqns")]
