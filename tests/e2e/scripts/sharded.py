"""Training with an optimizer whose state is divided: prints what a script can see of it as a line of JSON.

Arguments: a folder, and whether worker 1 is killed in it once ("killed"), the script changes weights in place ("changed"), or gradients are clipped each by
its own norm ("each") and there is no table, whose gradient would be rows.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

FOLDER, HOW = Path(sys.argv[1]), sys.argv[2]
keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
IMAGES, WORDS = random.normal(size=(96, 8, 8, 3)).astype("float32"), random.integers(0, 90, (96, 4))
CLASSES = random.integers(0, 5, 96)


@keras.saving.register_keras_serializable()
class Scaled(keras.layers.Layer):
    """Has a weight without dimensions."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, inputs: Any) -> Any:
        return inputs * self.scale


class Moving(keras.Model):
    """Tells how far some weights move in a step: it holds a slice of what they were, in whose memory TensorFlow may compute."""

    def train_step(self, *data: Any) -> Any:
        kernel = self.layers[-2].kernel
        before = (
            kernel.value[:128]
            if keras.backend.backend() == "tensorflow"
            else kernel.value[:128].detach().clone()
        )
        logs = super().train_step(*data)
        return {**logs, "moved": keras.ops.sum(keras.ops.abs(before - kernel.value[:128]))}


def build() -> keras.Model:
    """Kernels that are cut by rows (256 KB: memory of results is lent), a kernel of a convolution that is cut within them, a table whose gradient is rows."""
    images, words = keras.Input((8, 8, 3)), keras.Input((4,), dtype="int32")
    shapes = keras.layers.Flatten()(keras.layers.Conv2D(8, 3, activation="relu")(images))
    table = (
        keras.layers.Embedding(90, 6)
        if HOW != "each"
        else keras.layers.CategoryEncoding(90, "one_hot")
    )
    texts = keras.layers.Flatten()(table(words))
    shapes = Scaled()(shapes)
    wide = keras.layers.Dense(256, "relu")(keras.layers.Concatenate()([shapes, texts]))
    kind = Moving if HOW == "changed" else keras.Model
    return kind([images, words], keras.layers.Dense(5)(keras.layers.Dense(256, "relu")(wide)))


class Killed(keras.callbacks.Callback):
    """Ends a worker in the second epoch, once."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        mark = FOLDER / "killed"
        if (
            HOW == "killed"
            and int(self.model.optimizer.iterations) == 8
            and os.environ.get("PMI_RANK") == "1"
            and not mark.exists()
        ):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Changed(keras.callbacks.Callback):
    """Changes weights in place after each batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if HOW != "changed":
            return
        value = self.model.layers[-2].kernel.value
        if keras.backend.backend() == "tensorflow":
            value.assign_sub(0.01 * value)
        else:
            value.data.mul_(0.99)


model = build()
clip: Any = {"clipnorm": 0.1} if HOW == "each" else {"global_clipnorm": 1.0}
optimizer = keras.optimizers.AdamW(2e-3, weight_decay=0.01, use_ema=True, ema_momentum=0.9, **clip)
optimizer.exclude_from_weight_decay(var_names=["bias"])
model.compile(
    optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
saved = FOLDER / "each.keras"
history = model.fit(
    [IMAGES, WORDS], CLASSES, batch_size=16, epochs=3, verbose=0,
    callbacks=[
        Killed(), Changed(), keras.callbacks.ModelCheckpoint(str(saved)), keras.callbacks.BackupAndRestore(str(FOLDER / "backup")),
    ],
)  # fmt: skip
assert os.environ.get("PMI_RANK", "0") != "0" or not (FOLDER / "backup").exists()
model.other = keras.optimizers.Adam()  # as a GAN has: saved too
model.other.build(model.trainable_variables)
model.save(FOLDER / "end.keras")
again = keras.models.load_model(FOLDER / "end.keras", {"Moving": Moving})
assert [tuple(v.shape) for v in again.optimizer.variables] == [
    tuple(v.shape) for v in model.optimizer.variables
]
for one, other in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
    np.testing.assert_array_equal(np.asarray(one.numpy()), np.asarray(other.numpy()))
more = again.fit([IMAGES, WORDS], CLASSES, batch_size=16, epochs=1, verbose=0)
found = {
    "losses": [
        value
        for logs in (history.history, more.history)
        for values in logs.values()
        for value in values
    ],
    "weights": [float(np.abs(w).sum(dtype="float64")) for w in again.get_weights()],
    "optimizer": [
        [v.name.split("/")[-1], list(v.shape), float(np.abs(v.numpy()).sum(dtype="float64"))]
        for v in again.optimizer.variables
    ],
}
print(json.dumps(found))
