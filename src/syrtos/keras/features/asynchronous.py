"""Training at each worker's own pace, over parameter servers.

Each batch of an epoch goes to the worker that asks next, so a slow worker takes fewer and delays no
other. Between two meetings of the workers (a round: an epoch of `fit`, a `join` of a coordinator)
each worker assigns its own metrics and moving statistics. At the meeting what the workers have
added is summed, or averaged, and all take the servers' weights.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from syrtos.comm import world
from syrtos.comm.communicator import Array
from syrtos.comm.servers import Servers
from syrtos.comm.world import Session
from syrtos.keras.features.added_metrics import warn_of_own_metrics
from syrtos.keras.features.feature import Feature, Fit
from syrtos.keras.replica import state
from syrtos.records import read_record, record_of

if TYPE_CHECKING:
    import tensorflow as tf

    from syrtos.keras.protocols import Model, Optimizer, Variable


class OptimizerOnServers(Protocol):
    """An optimizer whose weights are held by parameter servers."""

    @property
    def optimizer(self) -> Optimizer:
        """The Keras optimizer."""
        ...

    @property
    def variables(self) -> Sequence[Variable]:
        """The variables of the model that it updates."""
        ...

    def begin(self) -> None:
        """Replaces the servers' state by worker 0's, and takes the weights from the servers."""
        ...

    def step(self, grads: Sequence[Any], variables: Sequence[Variable]) -> None:
        """Gives gradients to the servers, eagerly or in a graph, and takes their weights."""
        ...

    def pull(self) -> None:
        """Takes the weights, and the optimizer's state, from the servers as they are now."""
        ...


class ParameterServers(Feature):
    """`--ps`: workers that train at their own pace over parameter servers, or in step with them."""

    name = "asynchronous"

    @classmethod
    def is_asked(cls, session: Session) -> bool:
        return session.servers is not None

    def training_begins(self, fit: Fit) -> None:
        if fit.model is not None:
            if asynchronous_servers() is not None:
                warn_of_own_metrics(fit.model)
            _begin_equal(fit.model)

    def epoch_computed(self, fit: Fit, logs: dict[str, object] | None) -> None:
        # Workers that train at their own pace have met, and taken the weights, already. The others
        # take them now, so that the model is saved with them.
        if asynchronous_servers() is None:
            _pull()
        elif logs:
            _average(logs)

    def epoch_ends(self, fit: Fit) -> None:
        if _meet(bool(getattr(fit.model, "stop_training", False))) and fit.model is not None:
            fit.model.stop_training = True

    def replicas_differ(self, fit: Fit) -> bool:
        return asynchronous_servers() is not None


FEATURE = ParameterServers

_WISH = "wish"


@dataclasses.dataclass
class _Origin:
    """The record of a variable that Keras has made."""

    is_of_keras: bool = False


def note_keras(variable: object) -> None:
    """Notes that Keras has made a variable; others are a script's own."""
    record_of(variable, _Origin).is_of_keras = True


@dataclasses.dataclass
class _Served:
    """The record of an optimizer whose weights servers hold; None: they do not yet."""

    remote: OptimizerOnServers | None = None


class _Holdings:
    """The optimizers and variables of this worker that parameter servers serve.

    Attributes:
        optimizers: Keras's optimizers whose weights the servers hold, in the order of their first
            steps.
        variables: those whose values workers bring together when they meet, by name.
        counts: how often a name was given a number.
        base: the values of the variables when the round began.
        on_all_data: the number of calls of `on_all_data` that this process is in, one inside of the
            other.
    """

    def __init__(self, session: Session) -> None:
        self.optimizers: list[weakref.ref[Optimizer]] = []
        self.variables: dict[str, weakref.ref[tf.Variable]] = {}
        self.counts = collections.Counter[str]()
        self.base: dict[str, Array] = {}
        self.on_all_data = 0


def _holdings() -> _Holdings:
    return world.part(_Holdings)


def servers() -> Servers | None:
    """Returns the parameter servers of this run; None if it has none."""
    return world.current().servers if world.is_initialized() else None


def asynchronous_servers() -> Servers | None:
    """Returns the parameter servers if workers train at their own pace; else None."""
    found = servers()
    return found if found and not found.synchronous else None


def hold(one: OptimizerOnServers) -> None:
    """Registers an optimizer whose weights the servers hold."""
    record_of(one.optimizer, _Served).remote = one
    _holdings().optimizers.append(weakref.ref(one.optimizer))


def remote_of(optimizer: Optimizer) -> OptimizerOnServers | None:
    """Returns what `hold` has registered of one of Keras's optimizers; None: nothing yet."""
    return read_record(optimizer, _Served).remote


def number_of(name: str) -> str:
    """Returns the name with a number that is never used again, whatever is garbage-collected."""
    counts = _holdings().counts
    counts[name] += 1
    return f"{name} {counts[name]}"


def held_optimizers() -> list[tuple[Optimizer, OptimizerOnServers]]:
    """Returns the optimizers whose weights the servers hold, in the order of their first steps.

    Keras's own come first in each pair: none of them is collected while the caller has the list.
    """
    alive = (optimizer for known in _holdings().optimizers if (optimizer := known()) is not None)
    return [(own, one) for own in alive if (one := remote_of(own)) is not None]


def remember(variable: tf.Variable) -> None:
    """Registers a variable whose values workers bring together when they meet."""
    _holdings().variables[number_of(variable.name)] = weakref.ref(variable)


@contextlib.contextmanager
def on_all_data() -> Iterator[None]:
    """Context manager: each worker goes through a whole data set, as all evaluate equal weights."""
    holdings = _holdings()
    holdings.on_all_data += 1
    try:
        yield
    finally:
        holdings.on_all_data -= 1


def shards_dynamically() -> bool:
    """Returns whether the batches of a data set go to the worker that asks next, here and now."""
    return asynchronous_servers() is not None and not _holdings().on_all_data


def begin_round() -> None:
    """Notes the values of this worker's own variables; `end_round` counts what it has added."""
    _holdings().base = {name: variable.numpy() for name, variable in _own_variables().items()}


def end_round(wish: bool = False) -> bool:
    """Meets the other workers, and brings their variables and the servers' weights together.

    Returns:
        Whether one of the workers has the ``wish``.
    """
    asked = asynchronous_servers()
    assert asked is not None
    added: dict[str, Array] = {_WISH: np.ones(1)} if wish else {}
    variables, base = _own_variables(), _holdings().base
    rules = {name: _rule_of(variable) for name, variable in variables.items()}
    for name, variable in variables.items():
        value = variable.numpy()
        change = value - base.get(name, np.zeros_like(value))
        if np.any(change):
            added[name] = change
    sums = asked.end_round(added)
    for name, (total, count) in sums.items():
        variable, rule = variables.get(name), rules.get(name)
        if variable is None:
            continue
        share = count if rule == "mean" else 1
        variable.assign(base.get(name, np.zeros_like(total)) + (total / share).astype(total.dtype))
    _pull()
    # Else the next update of a fast worker would be in the weights that a slow one pulls.
    _meet()
    return _WISH in sums


def _average(logs: dict[str, object]) -> None:
    """Averages the numbers logged by a step of the script's own over all workers, in place."""
    asked = asynchronous_servers()
    assert asked is not None
    numbers = dict[str, Any](logs)  # of a step of the script's own: any values
    mine = {
        name: np.asarray(value, np.float64)
        for name, value in numbers.items()
        if np.ndim(value) == 0
    }
    logs.update(
        {
            name: float(total) / count
            for name, (total, count) in asked.end_round(mine).items()
            if name in logs
        }
    )


def _meet(wish: bool = False) -> bool:
    """Waits for the other workers; returns whether one of them has the ``wish``.

    Where workers do not train at their own pace, it returns False at once.
    """
    asked = asynchronous_servers()
    return bool(asked and asked.end_round({_WISH: np.ones(1)} if wish else {}))


def _begin_equal(model: Model) -> None:
    """Makes all workers, and the servers, start `fit` from worker 0's state.

    The script may have set weights since its last `fit`.
    """
    asked = asynchronous_servers()
    if asked is not None:
        found = state.of_model(model)
        for variable, value in zip(
            found, asked.share([state.memory_of(v) for v in found]), strict=True
        ):
            variable.assign(value)
    for _own, one in held_optimizers():
        trained = {state.identity(v) for v in state.variables_in(model) if v.trainable}
        if trained & {state.identity(v) for v in one.variables}:
            one.begin()


def _pull() -> None:
    for _own, one in held_optimizers():
        one.pull()


def _rule_of(variable: tf.Variable) -> Literal["sum", "mean"]:
    """Returns the rule by which the changes of a variable by all workers become one.

    Moving statistics become a mean. Metrics, counters and what a script trains by hand become the
    sum of what all workers have added.
    """
    by_hand = variable.trainable and not read_record(variable, _Origin).is_of_keras
    return (
        "mean"
        if variable.aggregation.name != "SUM" and variable.dtype.is_floating and not by_hand
        else "sum"
    )


def _own_variables() -> dict[str, tf.Variable]:
    """Returns the variables that workers assign themselves, by name.

    These are all variables but those that held optimizers have.
    """
    theirs = set()
    for own, one in held_optimizers():
        theirs |= {state.identity(v) for v in (*one.variables, *state.variables_of(own))}
    found, remembered = {}, _holdings().variables
    for name, known in list(remembered.items()):
        variable = known()
        if variable is None:
            del remembered[name]
        elif id(variable) not in theirs and (
            variable.dtype.is_floating or variable.dtype.is_integer
        ):
            found[name] = variable
    return found
