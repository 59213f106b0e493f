"""Training at each worker's own pace, over parameter servers.

Each batch of an epoch goes to the worker that asks next, so a slow worker takes fewer and delays no other. Between two
meetings of the workers (a round: an epoch of `fit`, a `join` of a coordinator) each assigns its own metrics and moving statistics; at
the meeting what they added is summed, or averaged, and all take the servers' weights.
"""

from __future__ import annotations

import collections
import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np

from syrtos.comm import world
from syrtos.comm.communicator import Array
from syrtos.comm.servers import Servers
from syrtos.keras import state


class Held(Protocol):
    """An optimizer whose weights servers hold."""

    optimizer: Any
    variables: list[Any]

    def begin(self) -> None:
        """Gives the servers worker 0's state, and takes the weights."""
        ...

    def pull(self) -> None:
        """Takes all that the servers have."""
        ...


_WISH = "wish"
# Set on what Keras has made.
KERAS = "_syrtos_of_keras"

_held: list[weakref.ref[Held]] = []
_variables: dict[str, weakref.ref[Any]] = {}
_counts = collections.Counter[str]()
_base: dict[str, Array] = {}
_whole = 0


def servers() -> Servers | None:
    """The servers of this run, if it has some."""
    return world.current().servers if world.joined() else None


def own() -> Servers | None:
    """The servers, if workers train at their own pace."""
    found = servers()
    return found if found and not found.synchronous else None


def hold(one: Held) -> None:
    """Counts an optimizer in."""
    _held.append(weakref.ref(one))


def number_of(name: str) -> str:
    """The name, and how many have had it before: never used again, whatever is collected when."""
    _counts[name] += 1
    return f"{name} {_counts[name]}"


def held() -> list[Held]:
    """The optimizers that servers hold, in the order in which they made their first step."""
    return [one for known in _held if (one := known()) is not None]


def remember(variable: Any) -> None:
    """Workers meet about this variable."""
    _variables[number_of(variable.name)] = weakref.ref(variable)


@contextlib.contextmanager
def on_all_data() -> Iterator[None]:
    """Inside, every worker goes through a whole data set: all evaluate the same weights."""
    global _whole
    _whole += 1
    try:
        yield
    finally:
        _whole -= 1


def shards_dynamically() -> bool:
    """Whether batches of a data set go to the worker that asks next, here and now."""
    return own() is not None and not _whole


def begin_round() -> None:
    """Notes the values that what this worker adds will be counted from."""
    _base.clear()
    _base.update({name: variable.numpy() for name, variable in _own_variables().items()})


def end_round(wish: bool = False) -> bool:
    """Meets the other workers; whether one of them has the wish."""
    asked = own()
    assert asked is not None
    added: dict[str, Array] = {_WISH: np.ones(1)} if wish else {}
    variables = _own_variables()
    rules = {name: _rule_of(variable) for name, variable in variables.items()}
    for name, variable in variables.items():
        value = variable.numpy()
        change = value - _base.get(name, np.zeros_like(value))
        if np.any(change):
            added[name] = change
    sums = asked.end_round(added)
    for name, (total, count) in sums.items():
        variable, rule = variables.get(name), rules.get(name)
        if variable is None:
            continue
        share = count if rule == "mean" else 1
        variable.assign(_base.get(name, np.zeros_like(total)) + (total / share).astype(total.dtype))
    _pull()
    meet()  # or the next update of a fast worker would be in the weights of a slow one
    return _WISH in sums


def average(logs: dict[str, Any]) -> None:
    """Makes the numbers that a step of the script's own has logged the mean of all workers, in place."""
    asked = own()
    if asked is None:
        return
    mine = {name: np.asarray(value, np.float64) for name, value in logs.items() if np.ndim(value) == 0}
    logs.update({name: float(total) / count for name, (total, count) in asked.end_round(mine).items() if name in logs})


def take_weights() -> None:
    """At the end of an epoch, so that the model is saved with them. At their own pace workers have met and taken them already."""
    if own() is None:
        _pull()


def meet(wish: bool = False) -> bool:
    """Waits for the other workers; whether one of them has the wish."""
    asked = own()
    return bool(asked and asked.end_round({_WISH: np.ones(1)} if wish else {}))


def begin_equal(model: Any) -> None:
    """All workers, and the servers, start `fit` from worker 0's state: a script may have set weights since its last one."""
    asked = own()
    if asked is not None:
        found = state.of_model(model)
        for variable, value in zip(found, asked.share([state.memory_of(v) for v in found]), strict=True):
            variable.assign(value)
    for one in held():
        trained = {state.identity(v) for v in state.variables_in(model) if v.trainable}
        if trained & {state.identity(v) for v in one.variables}:
            one.begin()


def _pull() -> None:
    for one in held():
        one.pull()


def _rule_of(variable: Any) -> Literal["sum", "mean"]:
    """Moving statistics become a mean; metrics, counters and what a script trains by hand are sums of what all have added."""
    by_hand = variable.trainable and not hasattr(variable, KERAS)
    return "mean" if variable.aggregation.name != "SUM" and variable.dtype.is_floating and not by_hand else "sum"


def _own_variables() -> dict[str, Any]:
    """What workers assign themselves: all but the optimizers' variables."""
    theirs = set()
    for optimizer in held():
        theirs |= {state.identity(v) for v in (*optimizer.variables, *state.variables_of(optimizer.optimizer))}
    found = {}
    for name, known in list(_variables.items()):
        variable = known()
        if variable is None:
            del _variables[name]
        elif id(variable) not in theirs and (variable.dtype.is_floating or variable.dtype.is_integer):
            found[name] = variable
    return found
