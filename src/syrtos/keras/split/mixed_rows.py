"""Tells which losses and metrics of Keras 3 and Keras 2 may mix the rows of a batch.

What Keras computes row by row is right on a share of the rows. Any other function (one of the
script's own, or Dice, whose sums are over all rows) needs the whole batch.
"""

from __future__ import annotations

import functools
import types

from syrtos.keras.keras_origin import is_of_keras, own_methods

# Keras's own functions that mix rows: they sum over the batch before they divide, or compare each
# row with all others (seen in 3.15.1).
_MIXING = frozenset({"dice", "tversky", "circle", "Dice", "Tversky", "Circle"})


def is_row_by_row(function: object) -> bool:
    """Returns whether a loss function is known to compute each row's value from that row alone."""
    if isinstance(function, functools.partial):
        return is_row_by_row(function.func) and not may_be_rows(function.keywords.get("axis"))
    if isinstance(function, types.MethodType):  # such as `keras.losses.Dice().call`
        return is_of_keras(function) and is_row_by_row(function.__self__)
    if hasattr(function, "reduction"):  # a `Loss` given as a metric
        return loss_is_row_by_row(function)
    return is_of_keras(function) and getattr(function, "__name__", "") not in _MIXING


def loss_is_row_by_row(loss: object) -> bool:
    """Returns whether a `Loss` is known to be row by row.

    Such a loss is of Keras's own class, around a row-by-row function of Keras's.
    """
    if not is_of_keras(type(loss)) or type(loss).__name__ in _MIXING:
        return False
    if own_methods(loss, ("call", "__call__")):
        return False
    if _is_along_rows(loss):
        return False
    function = getattr(loss, "fn", None)
    return function is None or is_row_by_row(function)


def is_known(part: object) -> bool:
    """Returns whether a loss or a metric, as `compile` takes it, is Keras's own and row by row."""
    if isinstance(part, str):
        return part.lower() not in _MIXING
    if hasattr(part, "update_state"):
        if not is_of_keras(type(part)) or _is_along_rows(part):
            return False
        function = getattr(part, "_fn", None)
        return function is None or is_row_by_row(function)
    return is_row_by_row(part)


def _is_along_rows(wrapper: object) -> bool:
    """Returns whether a function of Keras's was given an axis that may be that of the rows."""
    return may_be_rows(getattr(wrapper, "_fn_kwargs", {}).get("axis"))


def may_be_rows(axis: object) -> bool:
    """Returns whether an axis, or one of several, may be that of the rows; False for None."""
    # Besides 0, those of -2 and below: of a tensor of two dimensions -2 is the axis of its rows.
    axes = axis if isinstance(axis, list | tuple) else [axis]
    return any(isinstance(one, int) and (one == 0 or one < -1) for one in axes)
