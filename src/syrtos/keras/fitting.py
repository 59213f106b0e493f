"""Agreements between the workers around `compile`, `fit` and `evaluate`."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError, DataError
from syrtos.given_seeds import GivenSeeds
from syrtos.keras import backend, keras_internals
from syrtos.keras.features import registry

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, P, R


class _Fits:
    """The running calls of methods that train, their thread, and the latest iterator over batches.

    ``is_data_known``: whether the record says what kind of data the outermost call trains on.
    """

    def __init__(self, _session: Session) -> None:
        self.running = 0
        self.is_data_known = False
        self.thread: int | None = None
        self.iterator: weakref.ref[object] | None = None


def inside_fit(original: Callable[P, R]) -> Callable[P, R]:
    """Wraps Keras's `fit`, or another method that trains, to count the calls that are running."""

    @functools.wraps(original)
    def fit(*args: P.args, **kwargs: P.kwargs) -> R:
        fits = world.part(_Fits)
        fits.running += 1
        fits.is_data_known = fits.running > 1
        # Exchanges of another thread would meet those of this one: see `refuse_other_threads`.
        fits.thread = threading.get_ident()
        try:
            with registry.around_fit():
                return original(*args, **kwargs)
        finally:
            fits.running -= 1

    return fit


def depth() -> int:
    """Returns how many calls of `fit`, or another method that trains, run inside of each other."""
    return world.part(_Fits).running


def fit_is_running() -> bool:
    """Returns whether this process is inside a `fit` of Keras, or another method that trains."""
    return depth() > 0


def refuse_other_threads(name: str) -> None:
    """Refuses a call of a method that exchanges by another thread than the script's main thread.

    Raises:
        ConfigurationError: exchanges of two threads would meet each other's.
    """
    if world.sharing().comm.size == 1:
        return
    other = threading.get_ident() != world.part(_Fits).thread
    if fit_is_running() and other:
        raise ConfigurationError(
            f"`{name}` was called by another thread than the one in which `fit` runs, as by a"
            " generator or a `PyDataset` of batches. The workers exchange in both, in no common"
            " order. Compute what it gives before `fit`, or call the model itself there, which"
            " exchanges nothing: `model(x, training=False)`."
        )
    # What a framework has set for all models, as JAX's distribution, holds in this thread alone.
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            f"`{name}` was called in a thread that the script has started, on several workers:"
            " these exchange in each step, and their threads have no common order. Train models in"
            " the main thread, one after another; `syrtos tune` runs trials of a script beside each"
            " other."
        )


def call_together(name: str) -> None:
    """Waits until all workers call a method of a model; compares the seeds that their scripts gave.

    Raises:
        OutOfStepError: they call different methods.
        ConfigurationError: see `refuse_other_threads`.
    """
    refuse_other_threads(name)
    session = world.sharing()
    digests = session.comm.agree(f"model.{name}", world.part(GivenSeeds).digest())
    if len(set(digests)) > 1 and session.options.batch != "per-worker":
        _tell_unequal_seeds(session.comm)


def _tell_unequal_seeds(comm: Communicator) -> None:
    """Says which lines of the script gave a generator another seed on each worker."""
    everyone = comm.allgather_object(world.part(GivenSeeds).by_line)
    # A line that one worker alone has run is the script's decision.
    lines = set.intersection(*map(set, everyone))
    unequal = sorted(line for line in lines if len({seeds[line] for seeds in everyone}) > 1)
    if unequal and comm.rank == 0:
        print(
            f"syrtos: the workers have given generators unequal seeds at {', '.join(unequal)}. What"
            " the script draws from them differs between the workers, and is not what one process"
            " draws. Give a constant, or no seed at all: then all workers begin with the same.",
            file=sys.stderr,
        )


@contextlib.contextmanager
def optimizer_built_by_training(model: Model) -> Iterator[None]:
    """Context manager: a model is built without its optimizer, unless it is about to train.

    In one process, too, only training builds the optimizer.
    """
    # Into an optimizer that an evaluation had built, `load_weights` would load the state of the one
    # that was saved.
    optimizer = model.optimizer
    if optimizer is None or optimizer.built or fit_is_running():
        yield
        return
    optimizer.built = True
    try:
        yield
    finally:
        optimizer.built = False


def about_to_use(iterator: object) -> None:
    """Notes an iterator over batches made by Keras: the `fit` that begins next goes through it."""
    fits = world.part(_Fits)
    fits.iterator = weakref.ref(iterator)
    # Iterators over validation data are made after that over the data of training.
    if fits.running and not fits.is_data_known:
        fits.is_data_known = True
        world.current().ledger.say(input_of=keras_internals.data_kind(iterator))


def iterator_in_use() -> object | None:
    """Returns the iterator over batches that was made last, if it is still there; else None."""
    latest = world.part(_Fits).iterator
    return latest() if latest else None


def check_had_batch(has_part: bool) -> None:
    """Refuses to end an epoch of dynamically sharded batches in a worker that never had a batch.

    It has no part in the weights, and would save others than were trained.

    Raises:
        DataError: ``has_part`` is False.
    """
    if not has_part:
        raise DataError(
            "This worker has had no batch at all: there must be at least as many batches in an"
            " epoch as workers. Use a smaller batch size, or fewer workers."
        )


def agree_on_length(mine: int | None, own_shard: bool = False) -> int | None:
    """Compares the number of batches across workers, before the first of them is drawn.

    Args:
        mine: batches of this worker's data set, None if it is unknown.
        own_shard: whether the script says that each worker reads its own data, in batches of the
            global size: a batch is taken in as many steps as there are workers.

    Returns:
        The number of batches to draw: with batches per worker that of the longest, None if a worker
        does not know its
            own.

    Raises:
        DataError: the data set is empty, or workers have unequal numbers of global batches.
    """
    session = world.sharing()
    if mine == 0:
        raise DataError(
            "The data set is empty: it has no batches. Check the paths and filters that it is made"
            " from; `drop_remainder=True` also drops everything when there are fewer samples than"
            " one batch."
        )
    if session.world.size == 1:
        return mine
    if own_shard and mine is not None:
        mine *= session.world.size
    lengths = session.comm.agree(
        "compare length of data set", -1.0 if mine is None else float(mine)
    )
    if session.options.batch == "per-worker" or own_shard:
        return None if min(lengths) < 0 else int(max(lengths))
    if len(set(lengths)) > 1:
        raise DataError(
            "Workers have data sets of different lengths: "
            + ", ".join(f"rank {rank}: {_batches(n)}" for rank, n in enumerate(lengths))
            + ". With global batches every worker must read the same data. "
            + _advice_on_own_data()
        )
    return mine


def _batches(count: float) -> str:
    return "unknown" if count < 0 else f"{int(count)} batches"


class _OwnData:
    """Tells whether the first data of this process's own, which it trains on, was looked at."""

    def __init__(self, _session: Session) -> None:
        self.was_seen = False


def vote_with_checksum(comm: Communicator, checksum: float | None) -> list[float]:
    """Asks which workers have data, where each has its own; says so if they train on equal data.

    Args:
        comm: the workers.
        checksum: of this worker's first rows; None: it has none.

    Returns:
        1 for each rank that has a batch, 0 for the others.
    """
    checksums = comm.agree("more input?", 0.0 if checksum is None else 1.0 + checksum)
    votes = [float(found > 0) for found in checksums]
    if not world.is_initialized() or not fit_is_running():
        return votes
    seen = world.part(_OwnData)
    if seen.was_seen:
        return votes
    seen.was_seen = True
    is_asked = world.current().options.batch == "per-worker"
    if is_asked and comm.size > 1 and votes[0] and len(set(checksums)) == 1 and comm.rank == 0:
        print(
            "syrtos: with `--batch per-worker` all workers have read the same first rows: they seem"
            " to train on the same samples. Let each read its part"
            " (`x[syrtos.rank() :: syrtos.size()]`), or leave the option out.",
            file=sys.stderr,
        )
    return votes


def check_same_data(checksums: list[float], batch: int) -> None:
    """Compares what the workers have read of a global batch.

    Raises:
        DataError: the checksums differ.
    """
    if len(set(checksums)) == 1:
        return
    groups = {c: [rank for rank, other in enumerate(checksums) if other == c] for c in checksums}
    raise DataError(
        f"Workers read different data in batch {batch}: ranks"
        f" {' / '.join(map(str, groups.values()))} disagree. With global batches every worker must"
        " read the same batches in the same order. Usually the script shuffles with a generator of"
        " its own without a seed (`random.Random()`), or with one that differs between processes"
        f" (of the time, the PID): give it one seed. {_advice_on_own_data()}"
    )


def _advice_on_own_data() -> str:
    if backend.computes_global_batches():
        return (
            "If the script shards its data by rank itself, give its `keras.distribution` the"
            " argument `auto_shard_dataset=False`."
        )
    return "If the script shards its data by rank itself, run it with `--batch per-worker`."
