"""TensorFlow's random functions, most of them private. Seen to work on TensorFlow 2.21."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.framework import random_seed
from tensorflow.python.ops import (
    gen_image_ops,
    gen_random_ops,
)
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel_for

from syrtos.keras.patching import replace
from syrtos.keras.split.shares import SEED_STRIDE
from syrtos.keras.tensorflow import tf_internals_graphs
from syrtos.scopes import set_within

Original = Callable[..., Any]
# Gives the seed of a draw, int64 of shape (2,), or None: then TensorFlow draws as it would. It is
# given the object that draws.
Source = Callable[[Any], "tf.Tensor | None"]
# The arguments of TensorFlow's functions by name.
Arguments = Mapping[str, Any]
# A seed of a stateless operation: integers of shape (2,).
Seed = tf.Tensor | tuple[int, int]
# Gives the global seed and that of an operation, from the one that the script has given the
# operation.
GetSeed = Callable[[int | None], tuple[int | None, int | None]]
# Makes a draw from a seed, given the arguments of the function in whose place it draws.
Draw = Callable[[Seed, Arguments], object]

if TYPE_CHECKING:
    from syrtos.keras.backend import Step
    from syrtos.keras.protocols import P, R


class SeedGenerator(Protocol):
    """A generator of Keras 3."""

    def get_config(self) -> dict[str, Any]:
        """Returns what it was made with, its seed among it."""
        ...


def _shape_of_each(arguments: Arguments, name: str) -> tf.Tensor:
    """Returns the shape of gamma or Poisson numbers: the given shape for each parameter."""
    shape = tf.cast(arguments["shape"], tf.int32)
    return tf.concat([shape, tf.shape(arguments[name])], 0)


# Two threads that trace at once would leave each other's functions in the place of TensorFlow's.
_alone = threading.RLock()
# Functions that draw the same distribution from a seed, given the arguments of the operation
# without one.
_random: Any = tf.random  # whose annotations do not know all of it
_OPERATIONS: Mapping[str, Draw] = {
    "random_uniform": lambda seed, a: _random.stateless_uniform(a["shape"], seed, dtype=a["dtype"]),
    "random_uniform_int": lambda seed, a: _random.stateless_uniform(
        a["shape"], seed, a["minval"], a["maxval"], a["minval"].dtype
    ),
    "random_standard_normal": lambda seed, a: tf.random.stateless_normal(
        a["shape"], seed, dtype=a["dtype"]
    ),
    "truncated_normal": lambda seed, a: tf.random.stateless_truncated_normal(
        a["shape"], seed, dtype=a["dtype"]
    ),
    "parameterized_truncated_normal": lambda seed, a: (
        tf.random.stateless_parameterized_truncated_normal(
            a["shape"], seed, a["means"], a["stdevs"], a["minvals"], a["maxvals"]
        )
    ),
    "random_shuffle": lambda seed, a: _random.experimental.stateless_shuffle(a["value"], seed),
    "multinomial": lambda seed, a: tf.random.stateless_categorical(
        a["logits"], a["num_samples"], seed, a["output_dtype"]
    ),
    "random_gamma": lambda seed, a: tf.random.stateless_gamma(
        _shape_of_each(a, "alpha"), seed, a["alpha"], dtype=a["alpha"].dtype
    ),
    "random_poisson_v2": lambda seed, a: tf.random.stateless_poisson(
        _shape_of_each(a, "rate"), seed, a["rate"], a["dtype"]
    ),
}
# Functions that draw likewise in the place of methods of `tf.random.Generator`.
_METHODS: Mapping[str, Draw] = {
    "make_seeds": lambda seed, a: tf.pad(
        _random.stateless_uniform([1, a["count"]], seed, None, None, tf.int64), [[0, 1], [0, 0]]
    ),
    "uniform": lambda seed, a: _random.stateless_uniform(
        a["shape"], seed, a["minval"], a["maxval"], a["dtype"]
    ),
    "normal": lambda seed, a: tf.random.stateless_normal(
        a["shape"], seed, a["mean"], a["stddev"], a["dtype"]
    ),
    "truncated_normal": lambda seed, a: tf.random.stateless_truncated_normal(
        a["shape"], seed, a["mean"], a["stddev"], a["dtype"]
    ),
    "uniform_full_int": lambda seed, a: _random.stateless_uniform(
        a["shape"], seed, None, None, a["dtype"]
    ),
}


def _box(seed: Seed, a: Arguments) -> object:
    others = ("aspect_ratio_range", "area_range", "max_attempts", "use_image_if_no_bounding_boxes")
    return tf.image.stateless_sample_distorted_bounding_box(
        a["image_size"],
        a["bounding_boxes"],
        seed,
        a["min_object_covered"],
        **{name: a[name] for name in others},
    )


def _seed_of_keras(seed: Seed, a: Arguments) -> tf.Tensor:
    return tf.cast(seed, a["self"].state.dtype)


_drawn_for_weights: ContextVar[bool] = ContextVar("drawn_for_weights", default=False)


def _drawing(original: Callable[P, R]) -> Callable[P, R]:
    def init(*args: P.args, **kwargs: P.kwargs) -> R:
        with set_within(_drawn_for_weights, True):
            return original(*args, **kwargs)

    return init


@contextlib.contextmanager
def drawn_by(
    operations: Callable[[], tf.Tensor | None],
    generators: Source,
    given_seed: Callable[[int | None], None],
) -> Iterator[None]:
    """Makes graphs that are built within the context draw their random numbers from seeds.

    Args:
        operations: gives the seeds of operations that draw in the order in which threads come to
            them (`tf.random.uniform`, `tf.image.random_*`).
        generators: gives those of objects that keep their state in a variable
            (`tf.random.Generator`, `keras.random.SeedGenerator`); it is given the object.
        given_seed: is given the script's seed of an operation, before ``operations`` is called;
            None without one.
    """
    with _alone, contextlib.ExitStack() as stack:
        for name, draw in _OPERATIONS.items():
            _replace(stack, gen_random_ops, name, _drawing_from(draw, lambda _: operations()))
        box = _drawing_from(_box, lambda _: operations())
        _replace(stack, gen_image_ops, "sample_distorted_bounding_box_v2", box)
        for name, draw in _METHODS.items():
            _replace(stack, tf.random.Generator, name, _drawing_from(draw, generators))
        if keras := sys.modules.get("keras"):
            _replace(
                stack, keras.random.SeedGenerator, "next", _drawing_from(_seed_of_keras, generators)
            )
        _replace(stack, random_seed, "get_seed", _noting(given_seed))
        _replace(stack, Function, "__call__", _traced_here)
        yield


def _replace(
    stack: contextlib.ExitStack, owner: object, name: str, wrapper: Callable[[Original], Original]
) -> None:
    original = getattr(owner, name)
    stack.callback(setattr, owner, name, original)
    setattr(owner, name, wrapper(original))


def _drawing_from(draw: Draw, source: Source) -> Callable[[Original], Original]:
    def wrapper(original: Original) -> Original:
        signature, here = inspect.signature(original), threading.get_ident()

        def draw_seeded(*args: object, **kwargs: object) -> object:
            # Weights that a function makes while it is traced are drawn eagerly.
            elsewhere = tf.executing_eagerly() or threading.get_ident() != here
            seed = None if elsewhere else source(args[0] if args else None)
            if seed is None:
                return original(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return draw(seed, bound.arguments)

        return draw_seeded

    return wrapper


def _noting(given_seed: Callable[[int | None], None]) -> Callable[[GetSeed], GetSeed]:
    def wrapper(original: GetSeed) -> GetSeed:
        def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
            given_seed(op_seed)
            return original(op_seed)

        return get_seed

    return wrapper


@functools.cache
def draw_by_rank(
    rank: Callable[[], int],
    current_step: Callable[[], Step | None],
    is_plain: Callable[[], bool],
) -> None:
    """Makes operations and `tf.random.Generator` draw other numbers where ``rank()`` is not 0.

    All ranks are given the same seed.

    Args:
        rank: gives the number by which seeds differ.
        current_step: gives the step that is computed, which says whether all ranks draw the same.
        is_plain: returns whether generators draw as they do without a strategy.
    """

    def seeds_by_rank(original: GetSeed) -> GetSeed:
        def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
            seed, of_operation = original(op_seed)
            # Both are None, or none.
            return (
                seed,
                (
                    of_operation
                    if seed is None or of_operation is None
                    else of_operation + rank() * SEED_STRIDE
                ),
            )

        return get_seed

    def keys_by_rank(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def preprocess_key(self: tf.random.Generator, key: tf.Tensor) -> tf.Tensor:
            step = current_step()
            if is_plain() or (step is not None and step.draws_alike):
                return key  # to which the original may add the number of a replica
            found = original(self, key)
            return found + tf.constant(rank() * SEED_STRIDE, found.dtype)

        return preprocess_key

    replace(random_seed, "get_seed", seeds_by_rank)
    # This hook of generators is the one at which TensorFlow adds the number of a replica.
    replace(tf.random.Generator, "_preprocess_key", keys_by_rank)


@functools.cache
def draw_from_given_seeds(is_ours: Callable[[int], bool]) -> None:
    """Makes an operation with a seed of the script's draw as it does where no global seed is set.

    ``is_ours`` says of a global seed whether syrtos has set it.
    """
    # Without this the global seed that syrtos sets would change what e.g. ``shuffle(n, seed=3)``
    # means.

    def wrapper(original: GetSeed) -> GetSeed:
        def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
            seed, of_operation = original(op_seed)
            replaced = op_seed is not None and seed is not None and is_ours(seed)
            return random_seed.DEFAULT_GRAPH_SEED if replaced else seed, of_operation

        return get_seed

    replace(random_seed, "get_seed", wrapper)


def seed_of(generator: SeedGenerator | tf.random.Generator) -> int | None:
    """Returns the seed that a Keras generator began with; None for TensorFlow's: they keep none."""
    return None if isinstance(generator, tf.random.Generator) else generator.get_config()["seed"]


def _traced_here(original: Callable[..., R]) -> Callable[..., R]:
    """Wraps the call of a `tf.function`: a copy of it is traced here."""
    # The script's function may be a graph already, or be called elsewhere later: neither may be
    # with a seed of here.

    def call(self: Function, *args: object, **kwargs: object) -> R:
        return original(self._clone(None), *args, **kwargs)

    return call


@contextlib.contextmanager
def noting_vectorized(seen: Callable[[], None]) -> Iterator[None]:
    """Calls ``seen``, within the context, where `tf.vectorized_map` vectorizes operations."""

    def wrapper(original: Callable[P, R]) -> Callable[P, R]:
        def pfor(*args: P.args, **kwargs: P.kwargs) -> R:
            # A draw from one seed would give all of these elements one number.
            seen()
            return original(*args, **kwargs)

        return pfor

    with contextlib.ExitStack() as stack:
        _replace(stack, parallel_for, "pfor", wrapper)
        yield


def is_in_loop() -> bool:
    """Returns whether operations made now run several times in a call of the traced function."""
    current, datasets = tf_internals_graphs.graph(), 0
    while current is not None:
        datasets += str(getattr(current, "name", "")).startswith("Dataset_")
        if type(current).__name__ in ("WhileBodyFuncGraph", "WhileCondFuncGraph") or datasets > 1:
            # A data set inside of the function has elements of its own.
            return True
        current = getattr(current, "outer_graph", None)
    return False
