"""Makes the records and random numbers of `tf.data` pipelines independent of threads.

All workers must read the same batches. A script may leave the order of records to threads
(``deterministic=False``), and random operations in a parallel `map` draw from one generator in the
order in which threads come to it. In one process that makes runs differ; on workers that read the
same data it would make their batches differ. Here the order is kept, and each record of such a map
gets a seed of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from syrtos import settings
from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.keras.tensorflow import tf_internals, tf_internals_random
from syrtos.records import record_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import R
    from syrtos.keras.tensorflow.tf_internals_random import SeedGenerator


def in_order(original: Callable[..., R]) -> Callable[..., R]:
    """Wraps a method of `tf.data.Dataset` that has an argument ``deterministic``.

    False becomes True where workers take parts of the same batches.
    """
    signature = inspect.signature(original)

    def method(*args: object, **kwargs: object) -> R:
        bound = signature.bind(*args, **kwargs)
        if bound.arguments.get("deterministic") is False and is_read_by_all():
            bound.arguments["deterministic"] = True
        return original(*bound.args, **bound.kwargs)

    return method


def is_read_by_all() -> bool:
    """Returns whether all workers read the same batches, of which each takes a part."""
    session = world.sharing()
    return session.world.size > 1 and session.options.batch != "per-worker"


@dataclasses.dataclass
class _GeneratorRecord:
    """Record of a `keras.random.SeedGenerator`: the number of draws that maps have made from it."""

    draws: int = 0


_maps = itertools.count(1)


@dataclasses.dataclass
class _Draws:
    """The random draws that the function of a `map` makes while it is traced.

    Attributes:
        seed: the record's seed, the same in all maps; int64 scalar. None: TensorFlow draws.
        own_seed: the record's seed in this map.
        count: the number of draws so far.
        unseeded: whether none has a seed of the script's.
        repeated: whether some are in a loop, where one seed would give one number again and again.
    """

    seed: tf.Tensor | None = None
    own_seed: tf.Tensor | None = None
    count: int = 0
    unseeded: bool = True
    repeated: bool = False
    _given: int | None = None

    @contextlib.contextmanager
    def noting_draws(self) -> Iterator[None]:
        """Counts the draws of what is traced within the context, and gives them their seeds."""
        with (
            tf_internals_random.drawn_by(self._of_operation, self._of_generator, self._is_given),
            tf_internals_random.noting_vectorized(self._note_vectorized),
        ):
            yield

    def _is_given(self, seed: int | None) -> None:
        """Notes the script's seed of the next operation."""
        self._given = seed

    def _note_vectorized(self) -> None:
        self.repeated = True

    def _of_operation(self) -> tf.Tensor | None:
        """Returns the seed of an operation's draw."""
        # By the script's seed alone: operations with one seed draw the same numbers in TensorFlow
        # too, e.g. for an image and its mask.
        given, self._given = self._given, None
        return self._next(None if given is None else f"operation {given}")

    def _of_generator(self, generator: SeedGenerator | tf.random.Generator) -> tf.Tensor | None:
        """Returns the seed of a generator's draw.

        Generators that began with one seed draw the same; one generator draws new numbers each
        time.
        """
        record, seed = (
            record_of(generator, _GeneratorRecord),
            tf_internals_random.seed_of(generator),
        )
        before = record.draws
        self.unseeded = False  # its state goes on from epoch to epoch
        if self.seed is not None:
            record.draws = before + 1
        return self._next(None if seed is None else f"generator {seed} {before}")

    def _next(self, name: str | None) -> tf.Tensor | None:
        self.count += 1
        self.repeated |= tf_internals_random.is_in_loop()
        self.unseeded &= name is None
        if name is None:
            return (
                None
                if self.own_seed is None
                else tf.stack([self.own_seed, tf.constant(self.count, tf.int64)])
            )
        word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
        return None if self.seed is None else tf.stack([self.seed, tf.constant(word, tf.int64)])


def drawn_by_record(original: Callable[..., tf.data.Dataset]) -> Callable[..., tf.data.Dataset]:
    """Wraps `tf.data.Dataset.map`: its random numbers depend on the record and the epoch alone.

    This is done for a `map` with ``num_parallel_calls``, and for one without in a script that sets
    no seed.
    """
    # Threads would decide the order of draws in the former. In the latter, with the seed that
    # syrtos sets, TensorFlow would draw the same numbers in each epoch, where one process without
    # it draws new ones.
    signature = inspect.signature(original)

    def map_reproducibly(*args: object, **kwargs: object) -> tf.data.Dataset:
        bound = signature.bind(*args, **kwargs)
        draws = _Draws()
        with draws.noting_draws():
            found = original(*bound.args, **bound.kwargs)
        parallel = bound.arguments.get("num_parallel_calls") not in (None, 1)
        if not draws.count or draws.repeated or not _is_ours(parallel, draws):
            return found
        dataset, function = bound.arguments["self"], bound.arguments["map_func"]
        # So TensorFlow decides whether a function gets the parts of an element, or the whole.
        spread = type(dataset.element_spec) is tuple

        @tf.autograph.experimental.do_not_convert
        def from_seeds(seed: tf.Tensor, own_seed: tf.Tensor, element: Any) -> object:
            # With names of arguments of its own: TensorFlow warns of Keras's `_`.
            @tf.function
            def map_parts(*parts: object) -> object:
                return function(*parts)

            with _Draws(seed, own_seed).noting_draws():
                return map_parts(*(element if spread else (element,)))

        # Both have seeds, or TensorFlow would count these data sets in the seeds of what the script
        # makes after them.
        seeds, own_seeds = (
            tf.data.Dataset.random(n, rerandomize_each_iteration=True) for n in (0, next(_maps))
        )
        bound.arguments |= {
            "self": tf.data.Dataset.zip((seeds, own_seeds, dataset)),
            "map_func": from_seeds,
        }
        return original(*bound.args, **bound.kwargs)

    return map_reproducibly


def _is_ours(parallel: bool, draws: _Draws) -> bool:
    if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
        return False
    if parallel and not world.explicit():
        return True
    return draws.unseeded and is_seed_of_run(tf_internals.global_seed())


def begun_alike(
    _original: Callable[..., tf.random.Generator],
) -> Callable[..., tf.random.Generator]:
    """Wraps `Generator.from_non_deterministic_state`: a generator begins alike on all workers.

    The global generator of a script that sets no seed is made by it too.
    """

    def generator(*algorithm: Any, **named: Any) -> tf.random.Generator:
        # NumPy's entropy is the same on all workers of a run, as Python's is.
        seed = np.random.SeedSequence().generate_state(2).tolist()
        return tf.random.Generator.from_seed(seed, *algorithm, **named)

    return generator


class _SeedsOfGraphs:
    """The seeds that syrtos has given to graphs of a script that sets none."""

    def __init__(self, _session: Session) -> None:
        self.seeds: set[int] = set()


def note_seed_of_graph(seed: int) -> None:
    """Notes a seed that syrtos gives to a graph, for `is_seed_of_run`."""
    world.part(_SeedsOfGraphs).seeds.add(seed)


def is_seed_of_run(seed: int | None) -> bool:
    """Returns whether a global seed is the one that syrtos sets for a script that sets none."""
    # Outside of a run syrtos sets none.
    if settings.SEED_VARIABLE not in settings.launched_with():
        return False
    # Where the script says what is exchanged, that of each worker is the common one plus its rank.
    session = world.current()
    common = settings.common_seed()
    of_worker = (common + session.world.rank) % 2**31
    return seed in (common, of_worker) or seed in session.part(_SeedsOfGraphs).seeds
