"""The strategies of `tf.distribute`, each of which names the one strategy over all workers here.

That is so in a world of one worker too: TensorFlow refuses the scope of a strategy of its own where
ours is the default.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from syrtos.comm import world
from syrtos.dialects import keras2
from syrtos.errors import ConfigurationError
from syrtos.keras import activate
from syrtos.keras.patching import Method, replace
from syrtos.keras.tensorflow.input_policy import heed_policy
from syrtos.keras.tensorflow.strategy import Strategy, not_chosen

# Where TensorFlow has them: (module, name).
SERVED = (
    ("distribute", "MirroredStrategy"),
    ("distribute", "MultiWorkerMirroredStrategy"),
    ("distribute", "OneDeviceStrategy"),
    ("distribute.experimental", "MultiWorkerMirroredStrategy"),
    ("distribute.experimental", "CentralStorageStrategy"),
)
RESOLVERS = ("SlurmClusterResolver", "KubernetesClusterResolver", "GCEClusterResolver")


@functools.cache
def install() -> None:
    """Serves the strategies.

    In processes of several workers it also serves the resolvers that ask a cluster for its tasks.

    Scripts that make a strategy may use Keras 2's spellings, as TensorFlow's own tutorials do.
    """
    alone = world.init().world.size == 1
    Strategy.adapt_keras = activate.for_strategy
    for path, name in SERVED:
        for module in modules_with(path, name):
            original = getattr(module, name)
            setattr(
                module,
                name,
                _Strategies(name, (), {"__doc__": original.__doc__, "original": original}),
            )
    for name in RESOLVERS if not alone else ():
        for module in modules_with("distribute.cluster_resolver", name):
            setattr(module, name, functools.partial(_resolver_of_run, name))
    for module in modules_with("distribute.cluster_resolver", "TPUClusterResolver"):
        replace(module.TPUClusterResolver, "__init__", _without_tpus)


class NoTPUError(ConfigurationError, ValueError):
    """The error that TensorFlow could use no TPU here.

    It is a ValueError as TensorFlow's own is: scripts catch it, and go on with another strategy.
    """


def _without_tpus(_original: Method) -> Method:
    def init(self: object, *args: object, **kwargs: object) -> None:
        raise NoTPUError(
            "`TPUClusterResolver` looks for a TPU for TensorFlow, which syrtos does not train on."
            " Keras trains on TPUs by JAX: on the hosts of a TPU run the script with"
            " KERAS_BACKEND=jax and without the resolver and TPUStrategy. On CPUs and GPUs leave"
            " both out, or use MirroredStrategy in their place."
        )

    return init


def modules_with(path: str, name: str) -> list[Any]:
    """Returns this path's modules with the name: TensorFlow's own, and those under `tf.compat`."""
    found = []
    for root in (tf, tf.compat.v1, tf.compat.v2):
        with contextlib.suppress(AttributeError):
            found.append(functools.reduce(getattr, path.split("."), root))
    return [module for module in found if hasattr(module, name)]


class _Strategies(type):
    """The type of classes in name only: calling such a class gives the one strategy there is."""

    # The strategy is no instance of the class, because Keras and TensorFlow treat instances of
    # their own strategies in ways of their own.
    original: Callable[..., tf.distribute.Strategy]

    def __call__(cls, *args: Any, **kwargs: Any) -> tf.distribute.Strategy:
        """Returns the strategy.

        Raises:
            ConfigurationError: the script says itself what is exchanged, e.g. by Horovod.
        """
        # Such a script may place its work by OneDeviceStrategy, which reduces nothing; and alone no
        # strategy does.
        if world.explicit() and (
            cls.__name__ == "OneDeviceStrategy" or world.current().world.size == 1
        ):
            return cls.original(*args, **kwargs)
        activate.check_not_explicit(cls.__name__)
        keras2.install_once_imported()
        _tell_of_another_size(
            cls.__name__, _count_named_workers(args, kwargs), world.current().world.size
        )
        if cls.__name__ == "MultiWorkerMirroredStrategy":
            heed_policy()
        return Strategy()


def _count_named_workers(args: Sequence[object], kwargs: Mapping[str, object]) -> int | None:
    """Returns the number of devices or workers that the script named; None if it named none."""
    first = args[0] if args else kwargs.get("devices", kwargs.get("cluster_resolver"))
    if isinstance(first, list | tuple):
        return len(first)
    cluster = getattr(first, "cluster_spec", None)
    jobs: dict[str, list[str]] = cluster().as_dict() if isinstance(cluster, Callable) else {}
    return sum(len(jobs.get(job, [])) for job in ("chief", "worker")) or None


@functools.cache
def _tell_of_another_size(name: str, asked: int | None, size: int) -> None:
    """Prints a line on rank 0 if the script names another number of workers than the run has."""
    # Results don't depend on the number of workers: a line is enough.
    if asked not in (None, 1, size) and world.current().world.rank == 0:
        print(
            f"syrtos: tf.distribute.{name} names {asked} devices or workers, and this run has"
            f" {size}: it trains on {size}, with the same results. For {asked} start it with"
            f" `syrtos run -n {asked}`.",
            file=sys.stderr,
        )


def _resolver_of_run(name: str, *args: object, **kwargs: object) -> object:
    """Returns a resolver that knows this run's workers: the cluster need not be asked."""
    del name, args, kwargs
    # Not by `Strategy()`: a script that asks for a resolver has not chosen a strategy yet.
    return not_chosen().cluster_resolver
