"""A script that is slow until its data has a file `go`: something interrupts it in the middle."""

import os
import time

import keras
import numpy as np

go = os.path.join(os.environ["SM_CHANNEL_TRAIN"], "go")
keras.utils.set_random_seed(7)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")


class Pace(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if not os.path.exists(go):
            time.sleep(0.5)


features = np.random.default_rng(1).normal(size=(64, 8))
model.fit(features, features.sum(axis=1), batch_size=16, epochs=150, verbose=0, callbacks=[Pace()])
model.save(os.path.join(os.environ["SM_MODEL_DIR"], "paced.keras"))
print(f"{os.environ['SM_CURRENT_HOST']} has trained {model.optimizer.iterations.numpy()} steps")
