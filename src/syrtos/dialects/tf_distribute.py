"""The strategies of `tf.distribute`: each names the same thing here, the one strategy over all workers.

That is so in a world of one worker too: TensorFlow refuses the scope of a strategy of its own where ours is the default.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
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
    """Serves the strategies, and in processes of several workers the resolvers that ask a cluster for its tasks.

    Scripts that make a strategy may use Keras 2's spellings, as TensorFlow's own tutorials do.
    """
    alone = world.init().world.size == 1
    for place, name in SERVED:
        for module in places(place, name):
            original = getattr(module, name)
            setattr(module, name, _Strategies(name, (), {"__doc__": original.__doc__, "original": original}))
    for name in RESOLVERS if not alone else ():
        for module in places("distribute.cluster_resolver", name):
            setattr(module, name, functools.partial(_resolver, name))
    for module in places("distribute.cluster_resolver", "TPUClusterResolver"):
        replace(module.TPUClusterResolver, "__init__", _without_tpus)


class NoTPUError(ConfigurationError, ValueError):
    """The error that TensorFlow could use no TPU here.

    It is a ValueError as TensorFlow's own is: scripts catch it, and go on with another strategy.
    """


def _without_tpus(_original: Method) -> Method:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NoTPUError(
            "`TPUClusterResolver` looks for a TPU for TensorFlow, which syrtos does not train on. Keras trains on TPUs by JAX: on the hosts of a TPU run the "
            "script with KERAS_BACKEND=jax and without the resolver and TPUStrategy. On CPUs and GPUs leave both out, or use MirroredStrategy in their place."
        )

    return init


def places(module: str, name: str) -> list[Any]:
    """Returns the modules of this path that have the name: TensorFlow's own, and those under `tf.compat`."""
    found = []
    for root in (tf, tf.compat.v1, tf.compat.v2):
        with contextlib.suppress(AttributeError):
            found.append(functools.reduce(getattr, module.split("."), root))
    return [place for place in found if hasattr(place, name)]


class _Strategies(type):
    """The type of classes in name only: calling such a class gives the one strategy there is.

    The strategy is no instance of the class, because Keras and TensorFlow treat instances of their own strategies in
    ways of their own.
    """

    original: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> tf.distribute.Strategy:
        """Returns the strategy.

        Raises:
            ConfigurationError: the script says itself what is exchanged, e.g. by Horovod.
        """
        # The first places, and reduces nothing; and one worker of Horovod's reduces nothing by it.
        if world.explicit() and (cls.__name__ == "OneDeviceStrategy" or world.current().world.size == 1):
            return cls.original(*args, **kwargs)
        activate.check_not_explicit(cls.__name__)
        keras2.expect()
        _compare(cls.__name__, _asked_for(args, kwargs), world.current().world.size)
        if cls.__name__ == "MultiWorkerMirroredStrategy":
            heed_policy()
        return Strategy()


def _asked_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Returns the number of devices or workers that the script named; None if it named none."""
    first = args[0] if args else kwargs.get("devices", kwargs.get("cluster_resolver"))
    if isinstance(first, list | tuple):
        return len(first)
    cluster = getattr(first, "cluster_spec", None)
    jobs: dict[str, Any] = cluster().as_dict() if isinstance(cluster, Callable) else {}
    return sum(len(jobs.get(job, [])) for job in ("chief", "worker")) or None


@functools.cache
def _compare(name: str, asked: int | None, size: int) -> None:
    """Prints a line on rank 0 if the script names another number of workers than the run has."""
    # results don't depend on the number of workers: a line is enough
    if asked not in (None, 1, size) and world.current().world.rank == 0:
        print(
            f"syrtos: tf.distribute.{name} names {asked} devices or workers, and this run has {size}: it trains on {size}, with the "
            f"same results. For {asked} start it with `syrtos run -n {asked}`.",
            file=sys.stderr,
        )


def _resolver(name: str, *args: Any, **kwargs: Any) -> Any:
    """Returns a resolver that knows the workers of this run: nothing needs to be asked of the cluster."""
    del name, args, kwargs
    return not_chosen().cluster_resolver
