"""Wrappers of TensorFlow's own functions for files: one worker writes for all, and a file is complete or absent."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from syrtos.comm import world
from syrtos.keras.files.write_once import atomic, await_complete, once


def checkpointing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the method that writes the data and index of a checkpoint: one worker writes.

    Graphs write by themselves, when they run.
    """

    @functools.wraps(original)
    def save(
        self: Any, file_prefix: Any, checkpoint_number: Any = None, session: Any = None, options: Any = None
    ) -> Any:
        path = atomic.local(file_prefix)
        if path is None or not tf.executing_eagerly():
            return original(self, file_prefix, checkpoint_number, session, options)
        path = f"{path}-{int(checkpoint_number)}" if checkpoint_number else path
        once(path, lambda: atomic.write(path, lambda place: original(self, place, None, session, options)))
        return tf.constant(path)

    return save


def latest(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `tf.train.latest_checkpoint`: if it finds none, it waits for one that another worker may be writing."""

    @functools.wraps(original)
    def latest_checkpoint(checkpoint_dir: Any, latest_filename: str | None = None) -> str | None:
        result = original(checkpoint_dir, latest_filename)
        folder = atomic.local(checkpoint_dir)
        if result is None and folder is not None:
            await_complete(os.path.join(folder, latest_filename or "checkpoint"))
            result = original(checkpoint_dir, latest_filename)
        return result

    return latest_checkpoint


def writer(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `create_file_writer`: one worker gets the writer of summaries, the others get one that writes nothing."""

    @functools.wraps(original)
    def create_file_writer(logdir: Any, *args: Any, **kwargs: Any) -> Any:
        path, made = atomic.local(logdir), []
        if path is None:
            return original(logdir, *args, **kwargs)
        once(f"{path} summaries", lambda: made.append(original(logdir, *args, **kwargs)))
        return made[0] if made else tf.summary.create_noop_writer()

    return create_file_writer


def saved_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `tf.data.Dataset.save`: one worker writes the folder.

    The others read the data set to its end too, because its records may draw random numbers.
    """

    @functools.wraps(original)
    def save(
        self: Any, path: Any, compression: Any = None, shard_func: Any = None, checkpoint_args: Any = None
    ) -> None:
        local, written = atomic.local(path), []
        if local is None or checkpoint_args is not None:  # a store, or a folder that is there already
            original(self, path, compression, shard_func, checkpoint_args)
            return

        def write_to(place: str) -> None:
            written.append(place)
            original(self, place, compression, shard_func)

        once(local, lambda: atomic.write(local, write_to))
        if not written:
            for _ in self:
                pass

    return save


def kept_apart(argument: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps `tf.data.Dataset.cache` and `snapshot`: each worker writes a file of its own while it reads.

    Two writers of one file would break it.

    Args:
        argument: the name of the argument that holds the path. Rank 0's file has the script's name; those of the others
            end in their rank.
    """

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call_with_own_path(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            path, rank = given.arguments.get(argument), world.current().world.rank
            if rank and isinstance(path, str | os.PathLike) and os.fspath(path):
                given.arguments[argument] = f"{os.fspath(path)}.rank-{rank}"
            return original(*given.args, **given.kwargs)

        return call_with_own_path

    return wrapper
