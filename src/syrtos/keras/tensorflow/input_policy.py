"""Switches that say how batches of data sets reach the workers: set by the script, or by a call."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar

import tensorflow as tf

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.scopes import set_within

_steps_cut: ContextVar[bool] = ContextVar("steps_cut", default=False)
_policy_ignored: ContextVar[bool] = ContextVar("policy_ignored", default=False)
_gives_whole_batches: ContextVar[bool] = ContextVar("gives_whole_batches", default=False)


class _Policy:
    """The answer to the question if `AutoShardPolicy.OFF` is obeyed, as under `MultiWorkerMirroredStrategy`."""

    def __init__(self, _session: Session) -> None:
        self.is_obeyed = False


def are_cut_by_steps() -> bool:
    """Returns whether data sets are made for steps that cut their own shares (`input.cut`)."""
    return _steps_cut.get()


def cut_by_steps() -> contextlib.AbstractContextManager[object]:
    """Context manager: data sets are distributed as `numbered_batches` where that is possible."""
    return set_within(_steps_cut, True)


def heed_policy() -> None:
    """Gives `AutoShardPolicy.OFF` its meaning under `MultiWorkerMirroredStrategy`, from now on.

    Without this call the policy means nothing.
    """
    world.part(_Policy).is_obeyed = True


def ignoring_policy() -> contextlib.AbstractContextManager[object]:
    """Context manager: `AutoShardPolicy.OFF` is ignored, and batches are split.

    It is for `predict`, which gives the same rows on all workers.
    """
    return set_within(_policy_ignored, True)


def gives_whole_batches() -> bool:
    """Returns whether batches are given whole to each worker now: see `giving_whole_batches`."""
    return _gives_whole_batches.get()


def giving_whole_batches(whole: bool) -> contextlib.AbstractContextManager[object]:
    """Context manager: with ``whole``, batches of data sets are not split into shares.

    It is for functions that know nothing of shares, and holds for all that is called inside.
    """
    # Never False inside of True: `fit` evaluates its validation data by a call inside of its own.
    return set_within(_gives_whole_batches, whole or gives_whole_batches())


def is_own_shard(dataset: object) -> bool:
    """Returns whether the script says that it shards the data itself, by `AutoShardPolicy.OFF`."""
    heeds = world.part(_Policy).is_obeyed and not _policy_ignored.get()
    if not heeds or not isinstance(dataset, tf.data.Dataset):
        return False
    return (
        dataset.options().experimental_distribute.auto_shard_policy
        == tf.data.experimental.AutoShardPolicy.OFF
    )
