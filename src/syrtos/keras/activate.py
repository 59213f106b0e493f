"""Adapts Keras and its frameworks.

The import hook calls these functions when the script imports Keras or a framework. From then on the
script trains on all workers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from syrtos import entry_points, settings
from syrtos.comm import world, xla_library
from syrtos.errors import ConfigurationError
from syrtos.keras import backend, patching
from syrtos.keras.features import registry
from syrtos.topology import check_keras_backend

# The class of each backend, in its folder.
_CLASSES = {"tensorflow": "TensorFlow", "jax": "Jax", "torch": "Torch"}


def tensorflow() -> None:
    """Lets TensorFlow write each file once."""
    world.init()
    importlib.import_module("syrtos.keras.tensorflow.patching").patch_tensorflow()
    # With another backend TensorFlow's data sets serve it, and nothing else seeds their shuffling
    # alike on all workers.
    if _configured_backend() not in (None, "tensorflow"):
        sys.modules["tensorflow"].random.set_seed(settings.common_seed())


def torch() -> None:
    """Seeds torch alike on all workers.

    Its data loaders then shuffle alike where the script sets no seed, or asks for another.
    """
    framework: Any = sys.modules["torch"]
    framework.manual_seed(settings.common_seed())

    def seed() -> int:
        """Seeds torch as `torch.seed` does, with the next of the seeds that workers share."""
        drawn = int(np.random.SeedSequence().generate_state(1)[0])
        framework.manual_seed(drawn)
        return drawn

    framework.seed = framework.random.seed = seed


def keras3() -> None:
    """Makes plain Keras 3 scripts distributed.

    Raises:
        ConfigurationError: the backend has no exchange yet, and the world has several workers.
    """
    size, name = world.init().world.size, _backend_in_use()
    # The backend may come from keras.json, and not from the environment.
    check_keras_backend({"KERAS_BACKEND": name}, size)
    if name == "tensorflow" and size > 1 and world.current().options.exchange == "framework":
        raise ConfigurationError(
            "`--exchange framework` is not there for TensorFlow: MPI exchanges its gradients. Leave"
            " it out, or set KERAS_BACKEND to jax or torch."
        )
    if name in _CLASSES:
        try:
            patches = importlib.import_module(f"syrtos.keras.{name}.keras3")
        except ImportError as error:
            if not str(error.name).startswith("keras."):
                raise
            raise patching.lacking([str(error.name)]) from error
        patches.apply_all()
        _install_trial("keras:Model", "keras:Optimizer")
    if name == "tensorflow":
        _make_default()


def _install_trial(*classes: str) -> None:
    """Replaces `fit` in a trial of `syrtos tune`, whose package measures it."""
    if settings.trial_from(settings.launched_with()) is not None:
        entry_points.load(entry_points.TRIALS, "tune")(*classes)


def jax() -> None:
    """Joins the workers where Keras is to run on JAX."""
    # JAX can be joined only before anything is computed, and a script may compute before it imports
    # Keras.
    if world.init().world.size > 1 and _configured_backend() == "jax":
        from syrtos.keras.jax import joining

        joining.join()


@contextlib.contextmanager
def loading_jax(timed: AbstractContextManager[None]) -> Iterator[None]:
    """Context manager around an import of JAX, which is ``timed``.

    Where Keras is to run on it, JAX loads the library by which it exchanges.
    """
    session = world.init()
    by_mpi = session.world.size > 1 and session.options.exchange != "framework"
    offers = by_mpi and _configured_backend() == "jax"
    with timed, xla_library.offering() if offers else nullcontext():
        yield


def _configured_backend() -> str | None:
    """Reads the backend that Keras will choose when it is imported.

    It is KERAS_BACKEND, or that of Keras's configuration file; None if neither names one.
    """
    env = settings.environment()
    if env.get("KERAS_BACKEND"):
        return env["KERAS_BACKEND"]
    folder = env.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    with contextlib.suppress(OSError, ValueError):
        return json.loads(Path(folder, "keras.json").read_text()).get("backend")
    return None


def legacy() -> None:
    """Makes plain Keras 2 scripts (`tf_keras`) distributed."""
    world.init()
    _patches_of_keras2().apply_all()
    registry.refuse_steps("with Keras 2")
    _install_trial("tf_keras.src.engine.training:Model")
    _make_default()


def _keras2_alone() -> bool:
    return sys.modules.get("tf_keras") is not None and "keras" not in sys.modules


def _patches_of_keras2() -> Any:
    return entry_points.load(entry_points.KERAS_VERSIONS, "tf_keras")


def for_strategy() -> None:
    """Adapts Keras to models that are made under our strategy.

    This works in a process that `syrtos run` did not start, too.
    """
    check_tensorflow("a strategy of tf.distribute")
    from syrtos.keras.tensorflow import gradients

    if _keras2_alone():
        _patches_of_keras2().apply_all()
    else:
        importlib.import_module("syrtos.keras.tensorflow.keras3").apply_all()
    gradients.reduce_all_optimizers()


@functools.cache
def for_planned_data() -> None:
    """Adapts Keras to take planned data sets, and to find positions in files, in any process."""
    world.init()
    importlib.import_module(f"syrtos.keras.{_backend_in_use()}.keras3").apply_all()


def optimizers_only() -> None:
    """Adapts Keras so that single optimizers reduce gradients.

    The script says itself which of them do.
    """
    if _keras2_alone():
        _patches_of_keras2().apply_to_optimizers()
    elif _backend_in_use() not in ("tensorflow", "torch"):
        check_tensorflow("an optimizer that exchanges")
    else:
        importlib.import_module(f"syrtos.keras.{_backend_in_use()}.keras3").apply_to_optimizers()


def variables_only() -> None:
    """Lets the core read and write variables of Keras's backend."""
    if not backend.is_chosen():
        name = _backend_in_use()
        backend.use(
            getattr(importlib.import_module(f"syrtos.keras.{name}.variables"), _CLASSES[name])()
        )


def _backend_in_use() -> str:
    return sys.modules["keras"].backend.backend() if "keras" in sys.modules else "tensorflow"


def leave_exchange_to_script(name: str) -> None:
    """Leaves the exchange to the script, which has called the API ``name``.

    Models are made without a strategy from now on.

    Raises:
        ConfigurationError: the script trains under a strategy as well.
    """
    from syrtos.keras.tensorflow import strategy, tf_internals

    check_tensorflow(name)
    if strategy.is_chosen() and world.current().world.size > 1:
        raise ConfigurationError(
            f"This script initializes {name} and trains under a `tf.distribute` strategy: both"
            " would reduce the gradients. Keep one of them."
        )
    world.each_for_itself()
    optimizers_only()
    tf_internals.keep_default_strategy(None)


def check_tensorflow(name: str) -> None:
    """Raises ConfigurationError where Keras does not run on TensorFlow.

    ``name`` exchanges TensorFlow's tensors.
    """
    if _backend_in_use() != "tensorflow":
        raise ConfigurationError(
            f"This script uses {name}, which exchanges TensorFlow's tensors, and Keras runs on"
            f" {_backend_in_use()}. Remove {name} from the script: `syrtos run` trains plain"
            " `model.fit` on all workers. Or set KERAS_BACKEND=tensorflow."
        )


def check_not_explicit(strategy: str) -> None:
    """Raises ConfigurationError if a script makes ``strategy`` and exchanges gradients itself.

    ``strategy`` is the name of one of `tf.distribute`.
    """
    if world.explicit():
        raise ConfigurationError(
            f"This script makes a tf.distribute.{strategy} and initializes Horovod or SMDDP: both"
            " would reduce the gradients. Keep one of them."
        )


def _make_default() -> None:
    """Makes our strategy the default.

    Every model is created under it without a scope, and every optimizer reduces.
    """
    import tensorflow as tf

    from syrtos.keras.tensorflow import tf_internals
    from syrtos.keras.tensorflow.strategy import Strategy, not_chosen

    if world.explicit():
        return
    Strategy.adapt_keras = for_strategy
    if not tf_internals.keeps_default_strategy():
        tf_internals.keep_default_strategy(not_chosen())
        # Before any op is made: what a script shuffles without a seed is then shuffled alike on all
        # workers.
        tf.random.set_seed(settings.common_seed())
