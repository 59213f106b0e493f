"""A linear regression whose weights hardly move, and the noise scale of its gradients by definition: `noisy_regression.py OPTIMIZER`."""

import sys

import keras
import numpy as np

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x = random.normal(size=(4096, 20)).astype("float32")
y = (x @ random.normal(size=(20, 1)) + 2 * random.normal(size=(4096, 1))).astype("float32")
model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(1, kernel_initializer="zeros")])
model.compile(
    keras.optimizers.get({"class_name": sys.argv[1], "config": {"learning_rate": 1e-7}}), "mse"
)
model.fit(x, y, batch_size=64, epochs=12, verbose=0)
kernel, bias = model.get_weights()
error = 2 * (x @ kernel + bias - y)
gradients = np.concatenate([error * x, error], axis=1)  # of each sample
mean = gradients.mean(axis=0)
print("noise scale", gradients.var(axis=0).sum() / (mean @ mean))
