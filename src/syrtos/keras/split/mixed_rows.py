"""Gives losses and metrics that may mix the rows of a batch the rows of all workers.

The module serves Keras 3 and Keras 2.

Each worker has its share of a batch. What Keras computes row by row is right on a share; any other
function (one of the script's own, or Dice, whose sums are over all rows) is given the gathered rows
of all workers, on each of them, and returns what one process would have got. Gradients flow back to
the rows that a worker has computed itself.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, Protocol, TypeVar

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.keras import backend
from syrtos.keras.split.keras_origin import is_of_keras, own_methods
from syrtos.records import read_record, record_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import P, R

# The metric or loss that a wrapped method belongs to.
OwnerT = TypeVar("OwnerT")

# Keras's own functions that mix rows: they sum over the batch before they divide, or compare each
# row with all others (seen in 3.15.1).
_MIXING = frozenset({"dice", "tversky", "circle", "Dice", "Tversky", "Circle"})


class _WarnedMetrics:
    """The classes of metrics of which a line has warned."""

    def __init__(self, session: Session) -> None:
        self.kinds: set[type] = set()


@dataclasses.dataclass
class _MethodRecord:
    """The record of a method of a script's class: whether it was wrapped."""

    is_adapted: bool = False


class _MeanMetricWrapper(Protocol):
    """A metric of Keras around a function: `keras.metrics.MeanMetricWrapper`."""

    _fn: Callable[..., object]


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


def of_all_rows(
    original: Callable[Concatenate[OwnerT, P], R],
) -> Callable[Concatenate[OwnerT, P], R]:
    """Wraps `Loss.__call__`: it is given the rows of all workers where the loss may mix them."""
    return _on_all_rows(original, loss_is_row_by_row)


def mean_of_all_rows(
    original: Callable[Concatenate[_MeanMetricWrapper, P], R],
) -> Callable[Concatenate[_MeanMetricWrapper, P], R]:
    """Wraps `MeanMetricWrapper.update_state`.

    It is given the rows of all workers where the metric's function may mix them.
    """
    return _on_all_rows(
        original, lambda metric: is_row_by_row(metric._fn) and not _is_along_rows(metric)
    )


def adapting_class(
    original: Callable[Concatenate[OwnerT, P], None],
) -> Callable[Concatenate[OwnerT, P], None]:
    """Wraps `Metric.__init__`: a script's own `update_state` is given the rows of all workers."""

    @functools.wraps(original)
    def init(self: OwnerT, *args: P.args, **kwargs: P.kwargs) -> None:
        _adapt_metric(type(self))
        original(self, *args, **kwargs)

    return init


def adapting_loss(
    original: Callable[Concatenate[OwnerT, P], None],
) -> Callable[Concatenate[OwnerT, P], None]:
    """Wraps `Loss.__init__`: a script's own `__call__` is given the rows of all workers."""
    # It takes the place of Keras's own, which `of_all_rows` wraps.

    @functools.wraps(original)
    def init(self: OwnerT, *args: P.args, **kwargs: P.kwargs) -> None:
        _adapt(type(self), "__call__")
        original(self, *args, **kwargs)

    return init


def adapting_new(original: Callable[Concatenate[type, P], R]) -> Callable[Concatenate[type, P], R]:
    """Wraps `Metric.__new__` of Keras 2: a script's own `update_state` gets all workers' rows."""

    def new(kind: type, *args: P.args, **kwargs: P.kwargs) -> R:
        _adapt_metric(kind)
        return original(kind, *args, **kwargs)

    return new


def _adapt_metric(kind: type) -> None:
    _tell_where_workers_train_alone(kind)
    _adapt(kind, "update_state")


def _adapt(kind: type, method: str) -> None:
    """Wraps the method of each of the script's own classes that ``kind`` is made of, once."""
    # Each class by itself, since a method may call that of the class above by `super`.
    for owner in kind.__mro__:
        own = vars(owner).get(method)
        if (
            callable(own)
            and not is_of_keras(owner)
            and not read_record(own, _MethodRecord).is_adapted
        ):
            adapted = _on_all_rows(own)
            record_of(adapted, _MethodRecord).is_adapted = True
            setattr(owner, method, adapted)


def _tell_where_workers_train_alone(kind: type) -> None:
    """Warns of a script's own metric where nothing is exchanged in a step."""
    # There the states of metrics are added up, which is right for sums alone.
    session = world.current()
    alone, warned = (
        session.options.sync_every or session.options.asynchronous,
        session.part(_WarnedMetrics).kinds,
    )
    if (
        not alone
        or is_of_keras(kind)
        or kind in warned
        or session.world.rank
        or session.world.size == 1
    ):
        return
    warned.add(kind)
    print(
        f"syrtos: the states of the metric {kind.__name__} are added up over the workers, which"
        " train alone for some steps: one that is no sum (a maximum, a mean) may be another number"
        " than in one process.",
        file=sys.stderr,
    )


def _on_all_rows(
    original: Callable[Concatenate[OwnerT, P], R],
    is_known: Callable[[OwnerT], bool] = lambda _: False,
) -> Callable[Concatenate[OwnerT, P], R]:
    """Wraps a method: it is given the rows of all workers.

    An object that is row by row, as ``is_known`` tells, is given this worker's rows alone.
    """

    @functools.wraps(original)
    def method(self: OwnerT, *args: P.args, **kwargs: P.kwargs) -> R:
        step = backend.active().current_step()
        if step is None or not step.splits_batch or is_known(self):
            return original(self, *args, **kwargs)
        args, kwargs = step.rows_of_all((args, kwargs))
        # Or what it computes would be weighted by this worker's part of the samples once more.
        with step.as_one_process():
            return original(self, *args, **kwargs)

    return method
