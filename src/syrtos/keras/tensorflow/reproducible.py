"""Pipelines of `tf.data` whose records and random numbers do not depend on threads: all workers must read the same batches.

A script may leave the order of records to threads (``deterministic=False``), and random operations in a parallel `map` draw from one generator in
the order in which threads come to it. In one process that makes runs differ; on workers that read the same data it would make their batches differ.
Here the order is kept, and each record of such a map gets a seed of its own.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from syrtos import settings
from syrtos.comm import world
from syrtos.keras.patching import Method
from syrtos.keras.tensorflow import tf_internals, tf_internals_random


def in_order(original: Method) -> Method:
    """Around methods of `tf.data.Dataset` with an argument ``deterministic``: False is True where workers take parts of the same batches."""
    signature = inspect.signature(original)

    def method(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if bound.arguments.get("deterministic") is False and is_read_by_all():
            bound.arguments["deterministic"] = True
        return original(*bound.args, **bound.kwargs)

    return method


def is_read_by_all() -> bool:
    """Whether all workers read the same batches, of which each takes a part."""
    session = world.sharing()
    return session.world.size > 1 and session.options.batch != "per-worker"


class _Draws:
    """What the function of a `map` draws while it is traced.

    Attributes:
        count: draws that a seed of the record could serve.
        unseeded: none has a seed of the script's.
        repeated: some are in a loop, where one seed would give one number again and again.
    """

    def __init__(self, seed: Any = None) -> None:
        self.count = 0
        self.unseeded, self.repeated = True, False
        self._seed = seed

    def of_operation(self) -> tf.Tensor | None:
        self.repeated |= tf_internals_random.is_in_loop()
        self.count += 1
        return None if self._seed is None else tf.stack([self._seed, tf.constant(self.count, tf.int64)])

    def of_generator(self) -> tf.Tensor | None:
        self.unseeded = False  # its state goes on from epoch to epoch
        return self.of_operation()

    def given_seed(self) -> None:
        self.unseeded = False

    def vectorized(self) -> None:
        self.repeated = True

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Inside, what is traced draws from here."""
        with (
            tf_internals_random.drawn_by(self.of_operation, self.of_generator, self.given_seed),
            tf_internals_random.noting_vectorized(self.vectorized),
        ):
            yield


def drawn_by_record(original: Method) -> Method:
    """Around `tf.data.Dataset.map`: what it draws depends on the record and the epoch alone, where threads or a seed of ours would decide.

    Of a `map` with ``num_parallel_calls``, the order in which threads draw; of one without, in a script that sets no seed: with the seed that syrtos
    sets, TensorFlow would draw the same numbers in each epoch, and in one process without it draws new ones.
    """
    signature = inspect.signature(original)

    def mapped(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        draws = _Draws()
        with draws.noted():
            found = original(*bound.args, **bound.kwargs)
        parallel = bound.arguments.get("num_parallel_calls") not in (None, 1)
        if not draws.count or draws.repeated or not _is_ours(parallel, draws):
            return found
        dataset, function = bound.arguments["self"], bound.arguments["map_func"]
        spread = type(dataset.element_spec) is tuple  # as TensorFlow decides whether a function gets parts or the whole

        @tf.autograph.experimental.do_not_convert
        def from_seed(seed: tf.Tensor, element: Any) -> Any:
            with _Draws(seed).noted():
                return tf.function(function)(*(element if spread else (element,)))

        seeds = tf.data.Dataset.random(rerandomize_each_iteration=True)
        bound.arguments |= {"self": tf.data.Dataset.zip((seeds, dataset)), "map_func": from_seed}
        return original(*bound.args, **bound.kwargs)

    return mapped


def _is_ours(parallel: bool, draws: _Draws) -> bool:
    if not tf.executing_eagerly() or world.explicit():
        return False
    return parallel or (draws.unseeded and tf_internals.global_seed() == settings.common_seed())
