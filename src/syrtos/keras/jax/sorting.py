"""Steps that sort: XLA ends the process where it sorts in a batch that it has padded (JAX 0.10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar, cast

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from syrtos.keras.jax import distribution

if TYPE_CHECKING:
    from syrtos.keras.jax.types import State

_Tree = TypeVar("_Tree")


def compute_split(step: Callable[[State, object], _Tree], state: State, data: object) -> _Tree:
    """Computes a step on a batch whose rows are split, or on a whole one where it sorts uneven rows."""
    if distribution.has_even_rows(data):
        return step(state, distribution.split_rows(data))
    # Not by a wrapper of `jax.lax.sort`, whose callers JAX traces once for all steps and scripts.
    # The step is traced once, too: it may make variables.
    program, shapes = jax.make_jaxpr(step, return_shape=True)(state, data)
    results = compute_traced(program, state, split_unless_it_sorts(program, data))
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def split_unless_it_sorts(program: ClosedJaxpr, data: _Tree) -> _Tree:
    """Returns a batch whose rows are split; a whole one where a traced step sorts uneven rows."""
    is_whole = not distribution.has_even_rows(data) and _sorts(program.jaxpr)
    return data if is_whole else cast("_Tree", distribution.split_rows(data))


def compute_traced(program: ClosedJaxpr, *given: object) -> list[jax.Array]:
    """Computes a traced step again, and returns the leaves of its results."""
    return jaxpr_as_fun(program)(*jax.tree.leaves(given))


def _sorts(program: Jaxpr) -> bool:
    """Returns whether a traced program (`jax.core.Jaxpr`), or a part of it, sorts."""
    return any(
        equation.primitive.name == "sort" or any(map(_sorts, programs_in(equation.params)))
        for equation in program.eqns
    )


def programs_in(parameters: Mapping[str, object]) -> list[Jaxpr]:
    """Returns the programs among an equation's parameters, such as the body of a loop."""
    found = [getattr(leaf, "jaxpr", leaf) for leaf in jax.tree.leaves(list(parameters.values()))]
    return [leaf for leaf in found if hasattr(leaf, "eqns")]
