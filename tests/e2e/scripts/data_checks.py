"""Run by every worker: ``data_checks.py CHECK,CHECK FOLDER``; each check that holds prints ``ok CHECK``."""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import syrtos
import syrtos.data

X = np.arange(40, dtype=np.float32).reshape(40, 1)


class OneBad(syrtos.data.Source):
    """The first records of `X`, of which one can't be read."""

    fingerprint, nbytes = "one bad", 400

    def __init__(self, records, bad):
        self.records, self.bad = records, bad

    def __len__(self):
        return self.records

    def read(self, indices):
        if self.bad in indices:
            raise syrtos.data.BadRecord(self.bad, "file", 0, "it is bad")
        return X[indices]

    def place(self, index):
        return "file", index


def rows(**options):
    return syrtos.data.from_arrays(X, X, batch_size=4, shuffle=True, **options)


def make(spe=1):
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-5), "mse", steps_per_execution=spe)
    return model


def several_steps_at_once(folder):
    """A call of several steps does not reach into the next epoch."""
    for spe, epochs in ((4, 2), (3, 1), (8, 3), (5, 2)):
        model, data = make(spe), rows()
        model.fit(data, epochs=epochs, verbose=0)
        assert int(model.optimizer.iterations) == 10 * epochs, (
            spe,
            int(model.optimizer.iterations),
        )
        assert (data.position.epoch, data.position.place) == (epochs, 0), (spe, data.position)


def counted_steps(folder):
    model, data = make(), rows()
    model.fit(data, steps_per_epoch=6, epochs=4, validation_data=data, verbose=0)
    assert (data.position.epoch, data.position.place) == (2, 16)
    assert model.predict(data, verbose=0).shape == (40, 1)
    assert len(data) == 10


def each_model_begins_at_the_beginning(folder):
    data = rows()
    first, second = make(), make()
    first.fit(data, steps_per_epoch=3, epochs=1, verbose=0)
    second.fit(data, epochs=1, verbose=0)
    assert int(second.optimizer.iterations) == 10
    first.fit(data, epochs=1, verbose=0)  # it goes on where it was
    assert int(first.optimizer.iterations) == 10


def stopped_in_the_middle(folder):
    class Stop(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.evaluate(X, X, verbose=0)  # another iterator

        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 3

    model, data = make(), rows()
    model.fit(data, epochs=3, callbacks=[Stop()], verbose=0)
    assert (data.position.epoch, data.position.place) == (0, 16)
    model.save(folder / "stopped.keras")
    syrtos.barrier()
    loaded = keras.models.load_model(folder / "stopped.keras")
    loaded.fit(data, epochs=1, verbose=0)
    assert int(loaded.optimizer.iterations) == 10


def budget_counts_records_once(folder):
    data = syrtos.data.from_source(
        OneBad(40, 0),
        lambda x: (x, x),
        batch_size=4,
        shuffle=True,
        on_bad_record="skip",
        bad_budget=1,
    )
    make().fit(data, epochs=3, verbose=0)


def errors(folder):
    def parse(row):
        return row["nothing"]

    if syrtos.rank() == 0:
        (folder / "a.jsonl").write_text('{"a": 1, "y": 2}\n{"a": 1.5, "y": 3}\n')
    syrtos.barrier()
    with pytest.raises(
        syrtos.SyrtosError, match=r"KeyError: 'nothing' \(data_checks.py, line \d+\)"
    ):
        make().fit(syrtos.data.from_jsonl(folder / "a.jsonl", parse, batch_size=2), verbose=0)
    with pytest.raises(syrtos.SyrtosError, match="does not exist"):
        syrtos.data.from_tfrecord(folder / "nope", parse, batch_size=2)
    with pytest.raises(Exception, match="no column or field 'z'"):
        make().fit(syrtos.data.from_jsonl(folder / "a.jsonl", label="z", batch_size=2), verbose=0)
    if syrtos.size() > 1:  # one worker alone would see it
        return
    with pytest.raises(
        Exception, match="Records differ in type: the first gave int64, a later one float64"
    ):
        make().fit(
            syrtos.data.from_jsonl(
                folder / "a.jsonl", lambda row: ([row["a"]], row["y"]), batch_size=2
            ),
            verbose=0,
        )


def asynchronous(folder):
    """Over parameter servers all batches of each epoch are dealt out."""
    model, data = make(), rows()
    model.fit(data, epochs=3, verbose=0)
    assert int(model.optimizer.iterations) == 30, int(model.optimizer.iterations)


def horovod(folder):
    import horovod.tensorflow.keras as hvd

    hvd.init()
    model, data = make(), rows()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1e-5)), "mse")
    model.fit(data, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 2 * 5  # batches of 4 on each of two workers
    if hvd.rank() == 0:
        assert model.predict(data, verbose=0).shape == (40, 1)


def a_batch_of_bad_records(folder):
    """It counts nowhere: no row is predicted, none is in a mean, and the epoch ends without it."""
    data = syrtos.data.from_source(
        OneBad(3, 1), lambda x: (x + 1, 0 * x), batch_size=1, on_bad_record="skip", bad_budget=2
    )
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.ones((1, 1))])
    model.compile(keras.optimizers.SGD(0.0), "mae")
    assert model.predict(data, verbose=0).ravel().tolist() == [1.0, 3.0]
    assert model.evaluate(data, verbose=0) == 2.0
    assert model.fit(data, epochs=2, verbose=0).history["loss"] == [2.0, 2.0]
    assert (data.position.epoch, data.position.place) == (2, 0)


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        globals()[name](Path(sys.argv[2]))
        print("ok", name, flush=True)
