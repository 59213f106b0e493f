"""Files that functions write, checked by every worker: ``syrtos run -n 2 saving_checks.py KIND FOLDER URL``."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import syrtos
from syrtos.comm import world

KIND, FOLDER, URL = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
COMM = world.current().comm
RANK = COMM.rank
keras: Any = importlib.import_module("tf_keras" if KIND == "keras2" else "keras")


def model(value: float = 1.0) -> Any:
    built = keras.Sequential([keras.layers.InputLayer((6,)), keras.layers.Dense(3)])
    built.compile("sgd", "mean_squared_error")
    built.set_weights([np.full_like(weight, value) for weight in built.get_weights()])
    return built


def same(one: Any, other: Any) -> bool:
    return all(
        np.array_equal(a, b) for a, b in zip(one.get_weights(), other.get_weights(), strict=True)
    )


def raised(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def backup() -> None:
    """A `fit` that has failed goes on at the same epoch and step on every worker."""

    def fit(failing: bool, **how: Any) -> tuple[Any, Any]:
        def fail(epoch: int, logs: Any = None) -> None:
            if failing and epoch == 2:
                raise RuntimeError("as planned")

        built, rng = model(), np.random.default_rng(2)
        built.compile("adam", "mean_squared_error")
        x = rng.normal(size=(31, 6)).astype("float32")
        callbacks = [
            keras.callbacks.BackupAndRestore(str(FOLDER / f"backup {how}"), **how),
            keras.callbacks.LambdaCallback(on_epoch_begin=fail),
        ]
        options = {"batch_size": 8, "epochs": 4, "verbose": 0, "shuffle": False}
        return built, built.fit(x, x[:, :3], callbacks=callbacks, **options)

    whole, _ = fit(False, save_freq=1000)
    for how in ({}, {"save_freq": 3}):
        assert isinstance(raised(lambda how=how: fit(True, **how)), RuntimeError)
        COMM.barrier()
        again, history = fit(False, **how)
        assert history.epoch == ([1, 2, 3] if how else [2, 3]), history.epoch
        assert int(again.optimizer.iterations) == 16
        # In the middle of an epoch Keras 2 goes on with the first batches again, also in one process.
        for one, other in zip(again.get_weights(), whole.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-2 if how else 1e-4, atol=1e-6)


def names(folder: Path) -> list[str]:
    COMM.barrier()
    return sorted(path.name for path in folder.iterdir())


def functions() -> None:
    """Keras's own functions; each worker can read the file as soon as the function returns."""
    saved = model()
    for name in ("a.keras", "a.h5"):
        for value in (1.0, 2.0):  # over the file of before
            saved = model(value)
            keras.models.save_model(saved, FOLDER / name)
            time.sleep(0.5 * RANK)  # rank 0 comes to the next save before the others have read
            assert same(keras.models.load_model(FOLDER / name), saved)
    saved.save_weights(str(FOLDER / "a.weights.h5"))
    again = model()
    again.load_weights(str(FOLDER / "a.weights.h5"))
    assert same(again, saved)
    if KIND == "keras3":
        keras.saving.save_weights(saved, FOLDER / "b.weights.h5")
        saved.save_weights(FOLDER / "s.weights.json", max_shard_size=1e-7)
        again.load_weights(FOLDER / "s.weights.json")
    else:
        saved.save_weights(str(FOLDER / "tf-format"))
        assert saved.load_weights(str(FOLDER / "tf-format")).assert_consumed()
        saved.save(str(FOLDER / "folder"))
        assert same(keras.models.load_model(str(FOLDER / "folder")), saved)
    assert not [name for name in names(FOLDER) if name.startswith(".")]


def tensorflow() -> None:
    """`tf.saved_model`, checkpoints and their managers."""
    saved = model(3.0)
    for _ in range(2):
        saved.export(str(FOLDER / "exported"))
        (FOLDER / "exported" / "notes.txt").write_text("mine")
        tf.saved_model.save(tf.train.Checkpoint(v=tf.Variable(5.0)), str(FOLDER / "saved"))
        assert float(tf.saved_model.load(str(FOLDER / "saved")).v) == 5.0
    assert "notes.txt" in names(FOLDER / "exported"), "what others have put there stays"
    checkpoint = tf.train.Checkpoint(model=saved)
    prefix = str(FOLDER / "new" / "ckpt")
    assert checkpoint.save(prefix) == f"{prefix}-1"
    assert checkpoint.save(prefix) == tf.train.latest_checkpoint(FOLDER / "new") == f"{prefix}-2"
    assert checkpoint.write(prefix) == checkpoint.write(prefix) == prefix
    again = model()
    tf.train.Checkpoint(model=again).restore(prefix).expect_partial()
    assert same(again, saved)
    manager = tf.train.CheckpointManager(checkpoint, str(FOLDER / "kept"), max_to_keep=2)
    paths = [manager.save() for _ in range(3)]
    assert manager.checkpoints == paths[1:]
    assert manager.restore_or_initialize() == paths[-1]
    assert len(names(FOLDER / "kept")) == 5
    writer = tf.summary.create_file_writer(str(FOLDER / "board"))
    with writer.as_default():
        tf.summary.scalar("loss", 1.0, step=0)
    writer.close()
    assert len(names(FOLDER / "board")) == 1


def errors() -> None:
    """Of one type and one text on all workers."""
    saved = model()
    if KIND == "keras3":
        assert type(raised(lambda: saved.save(FOLDER / "a.wrong"))) is ValueError
    error = raised(lambda: saved.save(FOLDER / "nowhere" / "a.keras"))
    assert isinstance(error, FileNotFoundError), error
    (FOLDER / "f.keras").mkdir(exist_ok=True)
    error = raised(lambda: saved.save(FOLDER / "f.keras"))
    assert isinstance(error, IsADirectoryError), error
    assert error.errno == 21
    assert ".partial" not in str(error)
    (FOLDER / "file").write_text("no folder")
    error = raised(lambda: tf.train.Checkpoint(model=saved).write(str(FOLDER / "file" / "ckpt")))
    assert len(set(COMM.allgather_object(f"{type(error).__name__} {error}"))) == 1


def data_sets() -> None:
    """Saved once, after which all workers draw the same random numbers still; a cache and a snapshot for each."""
    draw = np.random.default_rng(0)

    def records() -> Any:
        for _ in range(12):
            yield draw.normal(size=3).astype("float32")

    made = tf.data.Dataset.from_generator(records, output_signature=tf.TensorSpec((3,)))
    made.save(str(FOLDER / "saved"))
    rows = np.stack(list(tf.data.Dataset.load(str(FOLDER / "saved"))))
    told = COMM.allgather_object((rows.tobytes(), float(draw.normal())))
    assert told[0] == told[-1]
    for kept in (made.cache(str(FOLDER / "cached")), made.snapshot(str(FOLDER / "snapshot"))):
        once, again = (np.stack(list(kept)) for _ in range(2))
        np.testing.assert_array_equal(once, again)
    assert {"saved", "snapshot", "snapshot.rank-1"} <= set(names(FOLDER))


def own_folders() -> None:
    """A folder that only one worker knows."""
    folder = Path(tempfile.mkdtemp())
    saved = model()
    saved.save(folder / "m.keras")
    assert same(keras.models.load_model(folder / "m.keras"), saved)
    checkpoint = tf.train.Checkpoint(model=saved)
    checkpoint.restore(checkpoint.save(str(folder / "ckpt"))).assert_consumed()


def fetched() -> None:
    """One request for all workers of the host; nobody reads half of it."""
    path = keras.utils.get_file("some.bin", URL, cache_dir=str(FOLDER))
    assert Path(path).stat().st_size == 1 << 20
    assert keras.datasets.mnist.load_data.__globals__["get_file"] is keras.utils.get_file
    error = raised(lambda: keras.utils.get_file("none", URL + "/missing", cache_dir=str(FOLDER)))
    assert "404" in str(error)


def unasked() -> None:
    """A script that knows its rank from elsewhere writes on one rank, and the others wait for the file in their own way."""
    if os.environ["PMI_RANK"] == "0":
        model(6.0).save(FOLDER / "unasked.keras")
        keras.utils.get_file(
            "unasked.bin", (FOLDER / "unasked.keras").as_uri(), cache_dir=str(FOLDER)
        )
    for file in (FOLDER / "unasked.keras", FOLDER / "datasets" / "unasked.bin"):
        while not file.exists():
            time.sleep(0.05)


def guarded() -> None:
    """A script that has asked for its rank writes on one rank or on all: nobody waits in vain, and readers find the file."""
    assert syrtos.rank() == RANK
    saved = model(4.0)
    saved.save(FOLDER / "all.keras")
    assert same(keras.models.load_model(FOLDER / "all.keras"), saved)
    for writer in (0, 1):
        COMM.barrier()
        if syrtos.rank() == writer:
            while not (FOLDER / f"read-{writer}").exists():
                time.sleep(0.05)
            saved.save(FOLDER / f"by-{writer}.keras")
        else:
            (FOLDER / f"read-{writer}").touch()
        assert same(keras.models.load_model(FOLDER / f"by-{writer}.keras"), saved)
    if syrtos.rank() == 0:
        saved.save(FOLDER / "polled.keras")
    while not (FOLDER / "polled.keras").exists():
        time.sleep(0.05)
    COMM.barrier()


def explicit() -> None:
    """Horovod's scripts say themselves which rank writes."""
    hvd = importlib.import_module("horovod.tensorflow.keras")
    hvd.init()
    fetched()
    saved = model(5.0 + hvd.rank())
    saved.save(FOLDER / f"rank-{hvd.rank()}.keras")
    if hvd.rank() == 0:
        saved.save(FOLDER / "zero.keras")
        tf.train.Checkpoint(model=saved).save(str(FOLDER / "hvd" / "ckpt"))
    hvd.allreduce(tf.constant(1.0))
    assert same(keras.models.load_model(FOLDER / "zero.keras"), model(5.0))
    assert same(keras.models.load_model(FOLDER / "rank-1.keras"), model(6.0))


CHECKS = (functions, tensorflow, errors, data_sets, own_folders, fetched, unasked, guarded)

if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    chosen = [globals()[name] for name in sys.argv[4:]]
    for check in chosen or ((explicit,) if KIND == "horovod" else CHECKS):
        COMM.barrier()
        check()
        print("ok", check.__name__, flush=True)
