"""A model with a loss of its own over all pairs of rows of a batch (InfoNCE)."""

import keras
import numpy as np
from clock import Clock
from keras import ops

keras.config.set_floatx("float64")  # so that rounding is small
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(4000, 64)).astype("float64")
y = (x + 0.5 * np.random.default_rng(1).normal(size=x.shape)).astype("float64")


class Pairs(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = keras.Sequential(
            [keras.layers.Dense(1024, activation="relu"), keras.layers.Dense(64)]
        )

    def call(self, x, training=None):
        return self.net(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        logits = ops.matmul(ops.normalize(y_pred), ops.transpose(ops.normalize(self.net(y)))) / 0.1
        return -ops.mean(ops.diagonal(ops.log_softmax(logits)))


model = Pairs()
model.compile(keras.optimizers.SGD(0.01))
model.fit(x, y, batch_size=128, epochs=3, shuffle=False, verbose=0, callbacks=[Clock()])
model.save_weights("after.weights.h5")
