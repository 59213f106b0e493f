"""The parameter servers of `tf.distribute`: `ParameterServerStrategy` and `ClusterCoordinator`.

The strategy is for `fit`.

TensorFlow has one coordinator that sends functions to workers. Here every worker runs the script
and plays the coordinator: all note the same scheduled calls, and each call is made by whichever
worker is free. After `join` all workers have the same results of the calls, and the same values of
the variables that the calls added to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.servers import Servers
from syrtos.comm.work_queue import KEPT
from syrtos.dialects import keras2
from syrtos.dialects.tf_distribute import modules_with
from syrtos.errors import ConfigurationError
from syrtos.keras import activate
from syrtos.keras.features import asynchronous
from syrtos.keras.tensorflow.strategy import Strategy

Resource = TypeVar("Resource")

# Where TensorFlow has them: (module, name).
STRATEGIES = (
    ("distribute", "ParameterServerStrategy"),
    ("distribute.experimental", "ParameterServerStrategy"),
)
COORDINATORS = ("distribute.coordinator", "distribute.experimental.coordinator")

_START = "Start the script with `syrtos run --ps 1 -n WORKERS train.py`."


@functools.cache
def install() -> None:
    """Serves the classes in processes of several workers, or of one with servers."""
    session = world.init()
    # A process by itself keeps TensorFlow's own classes.
    if session.world.size == 1 and not session.servers:
        return
    for path, name in STRATEGIES:
        for module in modules_with(path, name):
            setattr(module, name, ParameterServerStrategy)
    for path in COORDINATORS:
        for module in modules_with(path, "ClusterCoordinator"):
            module.ClusterCoordinator, module.RemoteValue = ClusterCoordinator, RemoteValue


class _StrategyOfRun(type):
    """The metaclass of a class whose call returns the strategy of this run.

    Keras asks `isinstance` of the class.
    """

    def __call__(
        cls, cluster_resolver: object = None, variable_partitioner: object = None
    ) -> tf.distribute.Strategy:
        """Returns the strategy of this run.

        Args:
            cluster_resolver: not asked; the workers and servers are those of the run.
            variable_partitioner: not asked; each server holds an equal share of every variable.

        Raises:
            ConfigurationError: the run has no parameter servers.
        """
        del cluster_resolver, variable_partitioner
        _servers("ParameterServerStrategy")
        keras2.install_once_imported()
        return Strategy()


class ParameterServerStrategy(metaclass=_StrategyOfRun):
    """Synchronous or asynchronous training with the parameter servers of this run."""


def _servers(name: str) -> Servers:
    session = world.current()
    activate.check_not_explicit(name)
    if session.servers is None:
        raise ConfigurationError(
            f"A {name} needs parameter servers, and this run has none. {_START}"
        )
    return session.servers


class RemoteValue:
    """The result of a scheduled call, which is there once some worker has made the call."""

    def __init__(self, coordinator: ClusterCoordinator, number: int) -> None:
        self._coordinator = coordinator
        self._number = number

    def fetch(self) -> object:
        """Returns the result as NumPy values; makes and waits for the calls that lead to it."""
        return self._coordinator._result(self._number)

    def get(self) -> object:
        """Returns the result as tensors; makes and waits for the calls that lead to it."""
        return tf.nest.map_structure(
            lambda value: value if value is None else tf.convert_to_tensor(value), self.fetch()
        )


class ClusterCoordinator:
    """Makes scheduled calls on the workers, each on one of them."""

    _only: ClusterCoordinator | None = None

    def __new__(cls, strategy: tf.distribute.Strategy) -> ClusterCoordinator:
        """Returns the only coordinator there is, as in TensorFlow; the first call makes it."""
        if cls._only is None:
            cls._only = super().__new__(cls)
            cls._only._begin(strategy)
        return cls._only

    def _begin(self, strategy: tf.distribute.Strategy) -> None:
        self._servers = _servers("ClusterCoordinator")
        if self._servers.synchronous:
            raise ConfigurationError(
                "A ClusterCoordinator's calls are made by one worker each, and `--staleness 0`"
                " makes each update of all workers' gradients. Leave out `--staleness`, or give it"
                " 1 or more."
            )
        self._strategy = strategy
        self._calls: list[Callable[[], object]] = []
        # The number of calls of rounds that are over, by which calls of all rounds are counted.
        self._before = 0
        self._in_round = False

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The strategy that the coordinator was made for."""
        return self._strategy

    # -- scheduling ------------------------------------------------------------------------------

    def schedule(
        self,
        fn: Callable[..., object],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RemoteValue:
        """Notes a call; some worker makes it when a result is wanted, or at `join`."""
        self._calls.append(functools.partial(fn, *(args or ()), **(kwargs or {})))
        return RemoteValue(self, self._before + len(self._calls) - 1)

    def join(self) -> None:
        """Waits until all scheduled calls are made; then variables are the same on every worker."""
        while self._make_one():
            pass
        if self._in_round:
            asynchronous.end_round()
        self._before += len(self._calls)
        self._calls.clear()
        self._in_round = False

    def done(self) -> bool:
        """Returns whether all calls have been made; makes one of them if not."""
        if self._make_one():
            return False
        self.join()
        return True

    def fetch(self, value: object) -> object:
        """Returns a structure with the results in place of its `RemoteValue`s."""
        return tf.nest.map_structure(
            lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf, value
        )

    # -- data ------------------------------------------------------------------------------------

    def create_per_worker_dataset(self, dataset_fn: object) -> object:
        """Returns this worker's own data set, from which it draws for the calls that it makes."""
        return dataset_fn() if callable(dataset_fn) else dataset_fn

    def create_per_worker_resource(self, resource_fn: Callable[[], Resource]) -> Resource:
        """Returns this worker's resource."""
        return resource_fn()

    # TensorFlow's private name for it.
    _create_per_worker_resources = create_per_worker_resource

    # -- helpers ---------------------------------------------------------------------------------

    def _make_one(self) -> bool:
        """Makes the next call that no worker has made, if there is one."""
        if not self._in_round:
            if not self._calls:
                return False
            asynchronous.begin_round()
            self._in_round = True
        # Repeatable: where a worker is lost, another one makes its call again.
        piece = self._servers.take(len(self._calls), repeatable=True)
        if piece is None:
            return False
        with self._strategy.scope():
            result = self._calls[piece]()
        # A result goes to the servers, from which every worker fetches it: a tensor would stay
        # here.
        plain = tf.nest.map_structure(
            lambda leaf: leaf.numpy() if tf.is_tensor(leaf) else leaf, result
        )
        self._servers.done(piece, self._before + piece, plain)
        return True

    def _result(self, number: int) -> object:
        # A result of this round may come from a call that nobody has made yet.
        while number >= self._before and self._make_one():
            pass
        try:
            return self._servers.result(number, over=number < self._before)
        except KeyError:
            raise ConfigurationError(
                f"The result of this call is not kept any more: fetch results before {KEPT} others"
                " have come."
            ) from None
