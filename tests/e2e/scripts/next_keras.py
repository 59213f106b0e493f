"""What `fit`, `evaluate`, `predict` and their like give, as one line of JSON: ``next_keras.py FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

rng = np.random.default_rng(0)
x = rng.normal(size=(37, 6, 8)).astype("float32")
y = (x.sum((1, 2)) > 0).astype("int32")


class Model(keras.Model):
    """A model whose call mixes rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = keras.layers.LSTM(8), keras.layers.Dense(2)
        self.drop, self.norm = keras.layers.Dropout(0.3), keras.layers.BatchNormalization()

    def call(self, inputs: Any, training: bool = False) -> Any:
        found = self.norm(self.drop(self.rnn(inputs), training=training), training=training)
        return self.out(found - keras.ops.mean(found, axis=0))


def batches() -> Any:
    while True:
        for start in range(0, 37, 9):
            yield x[start : start + 9], y[start : start + 9]


found: dict[str, Any] = {"keras": keras.__version__}
for steps in (1, 2):
    # The oldest versions refuse several on torch.
    if steps > 1 and keras.backend.backend() == "torch" and keras.__version__ < "3.16":
        continue
    keras.utils.set_random_seed(steps)
    model = Model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        loss,
        metrics=["accuracy"],
        steps_per_execution=steps,
    )
    fitted = model.fit(x, y, batch_size=8, epochs=2, validation_split=0.25, verbose=0).history
    generated = model.fit(batches(), steps_per_epoch=5, epochs=1, verbose=0).history
    found[f"fit {steps}"] = [*fitted.values(), *generated.values()]
    found[f"evaluate {steps}"] = model.evaluate(x, y, batch_size=5, verbose=0)
    found[f"predict {steps}"] = model.predict(x, batch_size=7, verbose=0).tolist()
    # The nightly of 2026-10-27 fails in plain JAX with several.
    if steps == 1:
        found["by hand"] = [
            *map(float, model.train_on_batch(x[:9], y[:9])),
            *map(float, model.test_on_batch(x[:5], y[:5])),
            float(np.abs(model.predict_on_batch(x[:3])).sum()),
        ]
path = Path(sys.argv[1], "next.weights.h5")
model.save_weights(path)
model.load_weights(path)
found["weights"] = [float(np.abs(weight).sum()) for weight in model.get_weights()]
print("found", json.dumps(found))
