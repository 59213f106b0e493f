"""Trains on a planned data set: ``data.py MODE FOLDER [STEP RANK]``; rank 0 writes what came out, as JSON. Dies at STEP on RANK."""

import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import syrtos
import syrtos.data

MODE, FOLDER = sys.argv[1], Path(sys.argv[2])
DIE = [int(word) for word in sys.argv[3:]]
FEATURES = {
    "x": tf.io.FixedLenFeature([4], tf.float32),
    "y": tf.io.FixedLenFeature([1], tf.float32),
}


def parse(record):
    example = tf.io.parse_single_example(record, FEATURES)
    return example["x"], example["y"]


def planned(batch_size, **options):
    return syrtos.data.from_tfrecord(FOLDER / "*.tfrecord", parse, batch_size=batch_size, **options)


def pipeline(batch_size):
    files = sorted(str(path) for path in FOLDER.glob("*.tfrecord"))
    return (
        tf.data.TFRecordDataset(files)
        .shuffle(50, seed=3)
        .map(parse)
        .batch(batch_size)
        .prefetch(tf.data.AUTOTUNE)
    )


class Dies(keras.callbacks.Callback):
    seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if [self.seen, syrtos.rank()] == DIE:
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(1)
model = keras.Sequential(
    [keras.layers.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
callbacks: list = [Dies()] if DIE else []
evaluated = planned(9)
fit = {}
if MODE == "planned":
    train = planned(8, shuffle=True, seed=3)
elif MODE == "resumed":
    train = planned(8, shuffle=True, seed=3)
    callbacks.insert(
        0, keras.callbacks.BackupAndRestore(FOLDER / "backup", save_freq=3, delete_checkpoint=False)
    )
elif MODE == "steps":
    train, fit = planned(8, shuffle=True, seed=3), {"steps_per_epoch": 5}
elif MODE == "bad":
    train = planned(8, shuffle=True, seed=3, on_bad_record="skip", bad_budget=0.5)
    evaluated = planned(9, on_bad_record="skip", bad_budget=0.5)
else:
    train = pipeline(8)
history = model.fit(
    train, epochs=4, validation_data=evaluated, callbacks=callbacks, verbose=2, **fit
).history
model.save(FOLDER / "model.keras")
loaded = keras.models.load_model(FOLDER / "model.keras")
again = loaded.fit(train, epochs=1, verbose=2, **fit).history
if syrtos.rank() == 0:
    result = {
        "history": history,
        "again": again,
        "evaluated": model.evaluate(evaluated, verbose=0) if syrtos.size() == 1 else [],
        "weights": [np.asarray(w).ravel().tolist() for w in loaded.get_weights()],
    }
    (FOLDER / "result.json").write_text(json.dumps(result))
