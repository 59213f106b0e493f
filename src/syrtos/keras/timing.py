"""What a worker's ledger is told about the parts of a run, its data, and loops of the script's own."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.keras import backend
from syrtos.observe.clock import Kind, Phase

Method = Callable[..., Any]

_PARTS: dict[str, tuple[Phase, Kind]] = {
    "fit": ("fit", "build"),
    "evaluate": ("test", "build"),
    "predict": ("predict", "build"),
}
# The script's `tf.function`s in which an optimizer was seen to make an update.
_updating: weakref.WeakSet[Any] = weakref.WeakSet()
_local = threading.local()
# The number of each function among those of its name, by its identity.
_numbers: dict[str, dict[int, int]] = {}


def part_of_run(original: Method) -> Method:
    """Around `fit`, `evaluate` and `predict`: their time is counted apart."""
    phase, kind = _PARTS[original.__name__]

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with world.current().ledger.part(phase, kind):
            return original(self, *args, **kwargs)

    return method


def tracing(name: str, function: object) -> contextlib.AbstractContextManager[None]:
    """Around the making of a graph of a function: functions of one name are told apart by a number."""
    if world.joined():
        known = _numbers.setdefault(name, {})
        number = known.setdefault(id(function), len(known) + 1)
        world.current().ledger.add("graphs", name if number == 1 else f"{name} ({number})", 1)
    return _span("trace")


def waiting_for_data() -> contextlib.AbstractContextManager[None]:
    """Around an iterator's next element, drawn eagerly."""
    return _span("input")


def _span(kind: Kind) -> contextlib.AbstractContextManager[None]:
    return world.current().ledger.span(kind) if world.joined() else contextlib.nullcontext()


# -- loops of the script's own -----------------------------------------------------------------------


class _Call:
    """A call from the script, and whether an update was made in it."""

    def __init__(self, updates: bool) -> None:
        self.updates = updates


@contextlib.contextmanager
def computing(function: Any = None) -> Iterator[None]:
    """Around what a script's own loop calls to compute: a `tf.function`, `strategy.run`, a tape, an update of an optimizer.

    A call in which an optimizer makes an update is a step; ``function`` is known by it when it is called again.
    """
    ledger = world.current().ledger if world.joined() else None
    if ledger is None or not ledger.in_script or not backend.active().eager():
        yield
        return
    outer = _call()
    if outer is not None:
        with _nested(outer, function):
            yield
        return
    ledger.before_update()
    call = _local.call = _Call(function is not None and function in _updating)
    try:
        with ledger.span("compute"):
            yield
    finally:
        _local.call = None
    if call.updates:
        _remember(function)
        ledger.updated()


@contextlib.contextmanager
def _nested(outer: _Call, function: Any) -> Iterator[None]:
    """A call inside of another: a `tf.function` that is known to make updates makes the outer call a step."""
    before, outer.updates = outer.updates, function is not None and function in _updating
    yield
    if outer.updates:
        _remember(function)
    outer.updates = outer.updates or before


def _remember(function: Any) -> None:
    with contextlib.suppress(TypeError):  # it can't be referred to weakly: it is found out again at its next trace
        if function is not None:
            _updating.add(function)


@contextlib.contextmanager
def updating() -> Iterator[None]:
    """Around an optimizer's update, eager or as it is traced."""
    with computing():
        call = _call()
        if call is not None:
            call.updates = True
        yield


def recording(original: Method) -> Method:
    """Around a tape's `__enter__`: what it records is computed."""

    def enter(self: Any) -> Any:
        self._syrtos_computing = computing()
        self._syrtos_computing.__enter__()
        return original(self)

    return enter


def recorded(original: Method) -> Method:
    """Around the `__exit__` of the same."""

    def leave(self: Any, *details: Any) -> Any:
        try:
            return original(self, *details)
        finally:
            self._syrtos_computing.__exit__(None, None, None)

    return leave


def as_computing(original: Method) -> Method:
    """Around a method that computes."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with computing():
            return original(self, *args, **kwargs)

    return method


def _call() -> _Call | None:
    return getattr(_local, "call", None)


# -- data of a step --------------------------------------------------------------------------------------


class _Clock:
    """Tells how long each step waited for its data."""

    def __init__(self) -> None:
        self._since = time.time()
        self._last_ready = 0.0
        self._traced = False

    def step_is_traced(self) -> None:
        """The time until data is there is not spent on input this time: the step is made a graph first."""
        self._traced = True

    def step_begins(self) -> None:
        """From now on the step waits for data."""
        self._since = time.time()

    def data_was_ready(self, session: Session, asked: float, ready: float, samples: float) -> bool:
        """The step that now ends had its data at ``ready`` (s since the epoch), and a graph had asked for it at ``asked`` (0: none had).

        ``samples``: of this worker's share. Returns whether this is the first exchange of the step.
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


clock = _Clock()
