"""Entries in a worker's ledger about parts of a run, its data, and loops of the script's own."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Concatenate, TypeVar

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.keras import backend
from syrtos.observe.clock import Kind, Phase
from syrtos.records import read_record, record_of
from syrtos.scopes import set_within

if TYPE_CHECKING:
    from syrtos.keras.protocols import P, R

_PARTS: dict[str, tuple[Phase, Kind]] = {
    "fit": ("fit", "build"),
    "evaluate": ("test", "build"),
    "predict": ("predict", "build"),
}
TapeT = TypeVar("TapeT")


def part_of_run(original: Callable[P, R]) -> Callable[P, R]:
    """Wraps `fit`, `evaluate` and `predict`: their time is counted apart."""
    phase, kind = _PARTS[original.__name__]

    def method(*args: P.args, **kwargs: P.kwargs) -> R:
        with world.current().ledger.part(phase, kind):
            return original(*args, **kwargs)

    return method


class _GraphNumbers:
    """The number of each function among those of its name, by its identity."""

    def __init__(self, _session: Session) -> None:
        self._numbers: dict[str, dict[int, int]] = {}

    def number_of(self, name: str, function: object) -> int:
        known = self._numbers.setdefault(name, {})
        return known.setdefault(id(function), len(known) + 1)


def tracing(name: str, function: object) -> contextlib.AbstractContextManager[None]:
    """Context manager around the making of a graph of a function: counts the graph and its time.

    Functions of one name are told apart by a number.
    """
    if world.is_initialized():
        number = world.part(_GraphNumbers).number_of(name, function)
        world.current().ledger.add("graphs", name if number == 1 else f"{name} ({number})", 1)
    return _span("trace")


def waiting_for_data() -> contextlib.AbstractContextManager[None]:
    """Context manager around an eager draw from an iterator: its time counts as input."""
    return _span("input")


def exchanging() -> contextlib.AbstractContextManager[None]:
    """Context manager around an exchange of tensors by workers: its time counts as exchange."""
    return _span("exchange")


def _span(kind: Kind) -> contextlib.AbstractContextManager[None]:
    return world.current().ledger.span(kind) if world.is_initialized() else contextlib.nullcontext()


# -- loops of the script's own ---------------------------------------------------------------------


class _Call:
    """A call from the script, and whether an update was made in it."""

    def __init__(self, updates: bool) -> None:
        self.updates = updates


_call: ContextVar[_Call | None] = ContextVar("call", default=None)


@dataclasses.dataclass
class _CallRecord:
    """The record of a script's `tf.function`: whether an optimizer's update was seen in it."""

    updates: bool = False


def makes_updates(function: object) -> bool:
    """Returns whether an optimizer's update was seen in a call of a script's `tf.function`."""
    return read_record(function, _CallRecord).updates


@contextlib.contextmanager
def computing(function: object = None) -> Iterator[None]:
    """Context manager around what a script's own loop calls to compute.

    This is a `tf.function`, `strategy.run`, a tape, or an update of an optimizer. A call in which
    an optimizer makes an update is a step; ``function`` is known by it when it is called again.
    """
    ledger = world.current().ledger if world.is_initialized() else None
    if ledger is None or not ledger.in_script or not backend.active().eager():
        yield
        return
    outer = _call.get()
    if outer is not None:
        with _nested_call(outer, function):
            yield
        return
    ledger.before_update()
    call = _Call(read_record(function, _CallRecord).updates)
    with set_within(_call, call), ledger.span("compute"):
        yield
    if call.updates:
        record_of(function, _CallRecord).updates = True
        ledger.note_update()


@contextlib.contextmanager
def _nested_call(outer: _Call, function: object) -> Iterator[None]:
    """Context manager around a call inside of another.

    A `tf.function` that is known to make updates makes the outer call a step.
    """
    before, outer.updates = outer.updates, read_record(function, _CallRecord).updates
    yield
    if outer.updates:
        record_of(function, _CallRecord).updates = True
    outer.updates = outer.updates or before


@contextlib.contextmanager
def updating() -> Iterator[None]:
    """Context manager around an optimizer's update, eager or traced: it makes the call a step."""
    with computing():
        call = _call.get()
        if call is not None:
            call.updates = True
        yield


@dataclasses.dataclass
class _TapeRecord:
    """The record of a tape: the context in which its time is counted."""

    computing: contextlib.AbstractContextManager[None] = dataclasses.field(
        default_factory=contextlib.nullcontext
    )


def recording(original: Callable[[TapeT], R]) -> Callable[[TapeT], R]:
    """Wraps a tape's `__enter__`: what the tape records is counted as computed."""

    def enter(self: TapeT) -> R:
        record = record_of(self, _TapeRecord)
        record.computing = computing()
        record.computing.__enter__()
        return original(self)

    return enter


def end_computing_after(
    original: Callable[Concatenate[TapeT, P], R],
) -> Callable[Concatenate[TapeT, P], R]:
    """Wraps a tape's `__exit__`: what follows is no longer counted as computed."""

    def leave(self: TapeT, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return original(self, *args, **kwargs)
        finally:
            read_record(self, _TapeRecord).computing.__exit__(None, None, None)

    return leave


def as_computing(original: Callable[P, R]) -> Callable[P, R]:
    """Wraps a method that computes: its time is counted as such."""

    def method(*args: P.args, **kwargs: P.kwargs) -> R:
        with computing():
            return original(*args, **kwargs)

    return method


# -- data of a step --------------------------------------------------------------------------------


class StepClock:
    """Measures how long each step waited for its data."""

    def __init__(self, _session: Session) -> None:
        self._since = time.time()
        self._last_ready = 0.0
        self._traced = False

    def step_is_traced(self) -> None:
        """Notes that the step is made a graph first.

        In such a step the time until data is there is not spent on input.
        """
        self._traced = True

    def step_begins(self) -> None:
        """Notes that the step waits for data from now on."""
        self._since = time.time()

    def data_was_ready(self, session: Session, asked: float, ready: float, samples: float) -> bool:
        """Counts the samples of the step that now ends, and how long it has waited for its data.

        Args:
            session: this worker's.
            asked: when a graph had asked for the data, s since the epoch; 0: none had.
            ready: when the data was there, s since the epoch.
            samples: the number of rows of this worker's share.

        Returns:
            Whether this is the first exchange of the step.
        """
        if ready == self._last_ready:
            return False
        self._last_ready = ready
        if not self._traced and asked:
            session.ledger.spend("input", max(ready - max(self._since, asked), 0.0))
        self._traced = False
        session.ledger.count(samples)
        self._since = time.time()
        return True
