"""Recurrent layers: each device scans its own rows, and their weights' gradients are summed once.

XLA keeps a sum of gradients that a loop carries equal on all devices, so that it sums over the
devices in each time step. Its passes for GPUs move these sums out of the loop, those for CPUs do
not (JAX 0.10.2: a step of an LSTM of 30 time steps took 26 ms with two workers on two cores, and
takes 5 so; one process takes 2).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
from jax.core import Tracer
from jax.sharding import PartitionSpec
from keras.src.backend.common.stateless_scope import StatelessScope, get_stateless_scope
from keras.src.layers.rnn import conv_lstm, gru, lstm, simple_rnn, stacked_rnn_cells

from syrtos.keras.jax import distribution

if TYPE_CHECKING:
    import keras

    from syrtos.keras.patching import Method

# Cells that compute each row by itself (seen in Keras 3.15.1), and what they draw for all rows
# before the loop.
_CELLS = (conv_lstm.ConvLSTMCell, gru.GRUCell, lstm.LSTMCell, simple_rnn.SimpleRNNCell)
_MASKS = ("_dropout_mask", "_recurrent_dropout_mask")


def inner_loop(original: Method) -> Method:
    """Wraps `RNN.inner_loop`, and those of its subclasses: the loop over the time steps."""

    def loop(
        layer: Any, sequences: Any, initial_state: Any, mask: Any, training: bool = False
    ) -> Any:
        rows = (
            distribution.rows_sharding()
            if distribution.traces_step() and isinstance(sequences, Tracer)
            else None
        )
        batched = (sequences, initial_state, mask)
        if rows is None or not _are_even(batched, rows.mesh.size):
            return original(layer, *batched, training)
        cells = list(_cells(layer.cell))
        weights = [weight for cell in cells for weight in cell.weights]
        if not _can_be_split(layer, cells, weights):
            return original(layer, *batched, training)
        masks = [[_untracked(getattr(cell, name, None)) for name in _MASKS] for cell in cells]

        def scan(values: list[Any], masks: list[Any], batched: tuple[Any, ...]) -> Any:
            with StatelessScope(state_mapping=list(zip(weights, values, strict=True))):
                _set_masks(cells, masks)
                return original(layer, *batched, training)

        try:
            run = jax.shard_map(
                scan,
                mesh=rows.mesh,
                in_specs=(PartitionSpec(), rows.spec, rows.spec),
                out_specs=rows.spec,
                check_vma=False,
            )
            return run([_value(weight) for weight in weights], masks, batched)
        finally:
            _set_masks(cells, masks)

    return loop


def _cells(cell: Any) -> Iterator[Any]:
    """Yields a cell, or those that are stacked in it."""
    if type(cell) is stacked_rnn_cells.StackedRNNCells:
        for each in cell.cells:
            yield from _cells(each)
    else:
        yield cell


def _can_be_split(layer: Any, cells: list[Any], weights: list[keras.Variable]) -> bool:
    """Returns whether a layer computes each row by itself, and keeps nothing but its outputs.

    A stateful layer keeps the states of all rows in variables; a penalty of activities is kept
    apart from outputs.
    """
    return (
        not layer.stateful
        and all(map(_is_known, cells))
        # A layer whose shapes are still being found out has no weights yet.
        and all(_value(weight) is not None for weight in weights)
        # The script may have split the rows itself, by `jax.shard_map` or `jax.pmap`.
        and not jax.sharding.get_abstract_mesh().manual_axes
    )


def _is_known(cell: Any) -> bool:
    functions = (getattr(cell, name, None) for name in ("activation", "recurrent_activation"))
    return (
        type(cell) in _CELLS
        and cell.activity_regularizer is None
        and all(function is None or _is_of_keras(function) for function in functions)
    )


def _is_of_keras(function: object) -> bool:
    # A layer may be given as an activation too: it may mix rows, or draw numbers.
    return inspect.isfunction(function) and function.__module__.startswith("keras.src.activations")


def _are_even(batched: object, devices: int) -> bool:
    """Returns whether the rows of all arrays can be divided among the devices without padding."""
    counts = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(batched)}
    return len(counts) == 1 and min(counts) > 0 and min(counts) % devices == 0


def _value(weight: keras.Variable) -> Any:
    """Returns a weight's value in the step being traced, in the dtype in which it is kept."""
    scope = get_stateless_scope()
    found = None if scope is None else scope.get_current_value(weight)
    return weight._value if found is None else found


def _untracked(masks: Any) -> Any:
    """Returns the list of Keras's own class as one that JAX knows."""
    return list(masks) if isinstance(masks, list) else masks


def _set_masks(cells: list[Any], masks: list[Any]) -> None:
    for cell, each in zip(cells, masks, strict=True):
        for name, value in zip(_MASKS, each, strict=True):
            if hasattr(cell, name):
                setattr(cell, name, value)
