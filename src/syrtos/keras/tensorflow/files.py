"""Wraps TensorFlow's file functions: one worker writes for all, files are complete or absent."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import tensorflow as tf

from syrtos.comm import world
from syrtos.keras.files.write_once import atomic, await_complete, once

if TYPE_CHECKING:
    from syrtos.keras.protocols import R

    Path = str | os.PathLike[str]


def checkpointing(original: Callable[..., object]) -> Callable[..., object]:
    """Wraps the method that writes the data and index of a checkpoint: one worker writes."""

    @functools.wraps(original)
    def save(
        self: object,
        file_prefix: Path | tf.Tensor,
        checkpoint_number: tf.Tensor | int | None = None,
        session: object = None,
        options: object = None,
    ) -> object:
        path = atomic.local(file_prefix)
        # Graphs write by themselves, when they run.
        if path is None or not tf.executing_eagerly():
            return original(self, file_prefix, checkpoint_number, session, options)
        path = f"{path}-{int(checkpoint_number)}" if checkpoint_number else path
        once(
            path,
            lambda: atomic.write(path, lambda place: original(self, place, None, session, options)),
        )
        return tf.constant(path)

    return save


def latest(original: Callable[..., str | None]) -> Callable[..., str | None]:
    """Wraps `tf.train.latest_checkpoint` to wait for a checkpoint that is being written.

    It waits if it finds none, because another worker may be writing one.
    """

    @functools.wraps(original)
    def latest_checkpoint(checkpoint_dir: Path, latest_filename: str | None = None) -> str | None:
        result = original(checkpoint_dir, latest_filename)
        folder = atomic.local(checkpoint_dir)
        if result is None and folder is not None:
            await_complete(os.path.join(folder, latest_filename or "checkpoint"))
            result = original(checkpoint_dir, latest_filename)
        return result

    return latest_checkpoint


def writer(original: Callable[..., object]) -> Callable[..., object]:
    """Wraps `create_file_writer`: one worker writes summaries, the other writers write nothing."""

    @functools.wraps(original)
    def create_file_writer(logdir: Path | tf.Tensor, *args: object, **kwargs: object) -> object:
        made: list[object] = []
        path = atomic.local(logdir)
        if path is None:
            return original(logdir, *args, **kwargs)
        once(f"{path} summaries", lambda: made.append(original(logdir, *args, **kwargs)))
        return made[0] if made else tf.summary.create_noop_writer()

    return create_file_writer


def saved_once(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps `tf.data.Dataset.save`: one worker writes the folder."""

    @functools.wraps(original)
    def save(
        self: Iterable[object],
        path: Path,
        compression: object = None,
        shard_func: object = None,
        checkpoint_args: object = None,
    ) -> None:
        written: list[str] = []
        local = atomic.local(path)
        # A store is no folder here; with checkpoints the folder is there already, and goes on.
        if local is None or checkpoint_args is not None:
            original(self, path, compression, shard_func, checkpoint_args)
            return

        def write_to(place: str) -> None:
            written.append(place)
            original(self, place, compression, shard_func)

        once(local, lambda: atomic.write(local, write_to))
        # The other workers read the data set to its end too, because its records may draw random
        # numbers.
        if not written:
            for _ in self:
                pass

    return save


def kept_apart(argument: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Wraps `tf.data.Dataset.cache` and `snapshot`: each worker writes its own file while it reads.

    Args:
        argument: the name of the argument that holds the path. Rank 0's file has the script's name;
            those of the others end in their rank.
    """

    def wrapper(original: Callable[..., R]) -> Callable[..., R]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call_with_own_path(*args: object, **kwargs: object) -> R:
            given = signature.bind(*args, **kwargs)
            path, rank = given.arguments.get(argument), world.current().world.rank
            # Two writers of one file would break it.
            if rank and isinstance(path, str | os.PathLike) and os.fspath(path):
                given.arguments[argument] = f"{os.fspath(path)}.rank-{rank}"
            return original(*given.args, **given.kwargs)

        return call_with_own_path

    return wrapper
