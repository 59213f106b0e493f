"""What is agreed on around `compile`, `fit` and `evaluate`."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from syrtos.comm import world
from syrtos.errors import ConfigurationError, DataError
from syrtos.keras import private
from syrtos.keras.input import is_own_shard
from syrtos.keras.strategy import Strategy


class _Fits:
    """How many calls of methods that train this process is in."""

    running = 0


def inside_fit(original: Callable[..., Any]) -> Callable[..., Any]:
    """Counts the calls of Keras's `fit`, or of another method that trains."""

    @functools.wraps(original)
    def fit(*args: Any, **kwargs: Any) -> Any:
        _Fits.running += 1
        try:
            return original(*args, **kwargs)
        finally:
            _Fits.running -= 1

    return fit


def fit_is_running() -> bool:
    """Whether this process is inside a `fit` of Keras, or another method that trains."""
    return _Fits.running > 0


@contextlib.contextmanager
def optimizer_built_by_training(model: Any) -> Iterator[None]:
    """Inside, what builds a model builds its optimizer only where it is about to train, as in one process: into an optimizer that an evaluation
    had built, `load_weights` would load the state of the one that was saved."""
    optimizer = model.optimizer
    if optimizer is None or optimizer.built or fit_is_running():
        yield
        return
    optimizer.built = True
    try:
        yield
    finally:
        optimizer.built = False


def check_strategy(strategy: Any) -> None:
    """Refuses to train under a strategy that knows nothing of the other workers.

    Raises:
        ConfigurationError: the model was made in the scope of another strategy, or before the script took over.
    """
    if world.explicit() and isinstance(strategy, Strategy) and world.current().world.size > 1:
        raise ConfigurationError(
            "The model was made before Horovod or SMDDP was initialized, and would split its batches over the workers. Call "
            "init() before the model is made."
        )
    size = world.sharing().world.size
    if size > 1 and not isinstance(strategy, Strategy):
        raise ConfigurationError(
            f"The model is trained under {type(strategy).__name__}, which knows nothing of the {size} workers: each would train "
            "alone. Remove the strategy's scope from the script, or use `syrtos.keras.Strategy()` in its place."
        )


_in_use: weakref.ref[Any] | None = None


def about_to_use(iterator: Any) -> None:
    """Keras has made an iterator over batches: the `fit` that begins next goes through it."""
    global _in_use
    _in_use = weakref.ref(iterator)


def iterator_in_use() -> Any:
    """The last that was made, if it is still there."""
    return _in_use() if _in_use else None


def check_class_weight(dataset: Any, class_weight: Any) -> None:
    """Refuses class weights on a data set that is split over the workers: Keras would make another of it, which would be split again.

    Raises:
        ConfigurationError: both are given.
    """
    if class_weight is not None and private.is_shared_out(dataset):
        raise ConfigurationError(
            "`class_weight` can't be given with a data set made by `experimental_distribute_dataset` or "
            "`distribute_datasets_from_function`: give `fit` the plain data set, or put sample weights into it."
        )


def check_dealt(adapter: Any) -> None:
    """Refuses data that workers read unalike where each batch goes to the worker that asks next.

    Raises:
        ConfigurationError: the data set's policy says that the script shares it out itself.
    """
    if is_own_shard(getattr(adapter, "_dataset", None)):
        raise ConfigurationError(
            "With parameter servers each batch goes to the worker that asks next, so all workers must read the same data; "
            "AutoShardPolicy.OFF says that each reads its own. Leave the policy out, or run with `--staleness 0`."
        )


def check_had_batch(has_part: bool) -> None:
    """Refuses to end an epoch of dealt batches in a worker that has had none, ever: it has no part in the weights, and would save others
    than were trained.

    Raises:
        DataError: ``has_part`` is False.
    """
    if not has_part:
        raise DataError(
            "This worker has had no batch at all: there must be at least as many batches in an epoch as workers. Use a smaller batch "
            "size, or fewer workers."
        )


def agree_on_length(mine: int | None, dataset: Any = None) -> int | None:
    """Compares the number of batches across workers, before the first of them is drawn.

    Args:
        mine: batches of this worker's data set, None if it is unknown.
        dataset: the data set, if it is a `tf.data.Dataset`.

    Returns:
        The number of batches to draw: with batches per worker that of the longest, None if a worker does not know its own.

    Raises:
        DataError: the data set is empty, or workers have unequal numbers of global batches.
    """
    session = world.sharing()
    if mine == 0:
        raise DataError(
            "The data set is empty: it has no batches. Check the paths and filters that it is made from; `drop_remainder=True` "
            "also drops everything when there are fewer samples than one batch."
        )
    if session.world.size == 1:
        return mine
    own_shard = is_own_shard(dataset)
    if own_shard and mine is not None:
        mine *= session.world.size  # a batch of the script is taken in so many steps
    lengths = session.comm.agree("compare length of data set", -1.0 if mine is None else float(mine))
    if session.options.batch == "per-worker" or own_shard:
        return None if min(lengths) < 0 else int(max(lengths))
    if len(set(lengths)) > 1:
        raise DataError(
            "Workers have data sets of different lengths: "
            + ", ".join(f"rank {rank}: {_batches(n)}" for rank, n in enumerate(lengths))
            + ". With global batches every worker must read the same data. If the script shards its data by rank itself, run it "
            "with `--batch per-worker`."
        )
    return mine


def _batches(count: float) -> str:
    return "unknown" if count < 0 else f"{int(count)} batches"


def adapt(model: Any) -> None:
    """Before a model's functions are made: turns off what can't work in several processes, and applies the run's options.

    XLA may have been asked for by `compile`, by ``model.jit_compile = True``, or by Keras itself, which chooses it on a GPU.
    """
    place = world.current().world
    if place.size == 1:
        return
    if model.jit_compile:
        if place.rank == 0:
            print(
                "syrtos: jit_compile=True is turned off: XLA can't contain the exchange between workers. "
                "The model runs without it, with the same results.",
                file=sys.stderr,
            )
        model.jit_compile = False
    if world.sharing().options.sync_batchnorm:
        synchronize_batchnorm(model)


def synchronize_batchnorm(model: Any) -> None:
    """Makes every BatchNormalization layer compute its statistics over the global batch."""
    for layer in private.layers_of(model):
        if any(base.__name__ == "BatchNormalization" for base in type(layer).__mro__):
            layer.synchronized = True
