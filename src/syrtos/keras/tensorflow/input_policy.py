"""The ways to give batches of data sets to workers, as a script, a run or a call decides."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf

_steps_cut = contextvars.ContextVar("_steps_cut", default=False)


def are_cut_by_steps() -> bool:
    """Returns whether data sets are made for steps that `cut`."""
    return _steps_cut.get()


@contextlib.contextmanager
def cut_by_steps() -> Iterator[None]:
    """Context manager: data sets are distributed as `numbered_batches` where that is possible."""
    before = _steps_cut.set(True)
    try:
        yield
    finally:
        _steps_cut.reset(before)


class _Now:
    """The state of this process.

    Attributes:
        policy_counts: whether `AutoShardPolicy.OFF` means what it means under
            `MultiWorkerMirroredStrategy`.
        gives_whole_batches: whether batches are given whole to each worker.
    """

    policy_counts = gives_whole_batches = False


def heed_policy() -> None:
    """Gives `AutoShardPolicy.OFF` its meaning under `MultiWorkerMirroredStrategy`, from now on.

    Without this call the policy means nothing.
    """
    _Now.policy_counts = True


@contextlib.contextmanager
def policy_ignored() -> Iterator[None]:
    """Ignores `AutoShardPolicy.OFF` within the context.

    The batches that one process would see are split.
    """
    # Predictions are to be the same rows on all workers.
    before, _Now.policy_counts = _Now.policy_counts, False
    try:
        yield
    finally:
        _Now.policy_counts = before


def gives_whole_batches() -> bool:
    """Returns whether batches are given whole to each worker now: see `giving_whole_batches`."""
    return _Now.gives_whole_batches


@contextlib.contextmanager
def giving_whole_batches(whole: bool) -> Iterator[None]:
    """Context manager: with ``whole``, batches of data sets are not split into shares.

    It is for functions that know nothing of shares, and holds for all that is called inside.
    """
    # Also without `whole` where it holds outside: `fit` makes the batches of its validation itself.
    before, _Now.gives_whole_batches = _Now.gives_whole_batches, whole or _Now.gives_whole_batches
    try:
        yield
    finally:
        _Now.gives_whole_batches = before


def is_own_shard(dataset: object) -> bool:
    """Returns whether the script says that it shards the data itself, by `AutoShardPolicy.OFF`."""
    if not _Now.policy_counts or not isinstance(dataset, tf.data.Dataset):
        return False
    return (
        dataset.options().experimental_distribute.auto_shard_policy
        == tf.data.experimental.AutoShardPolicy.OFF
    )
