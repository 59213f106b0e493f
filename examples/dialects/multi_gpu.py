"""`keras.utils.multi_gpu_model`, as scripts called it until 2020.

syrtos run -n 2 examples/dialects/multi_gpu.py
"""

import keras
from keras.utils import multi_gpu_model
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).reshape(-1, 8, 8, 1).astype("float32")
keras.utils.set_random_seed(1)

model = keras.Sequential(
    [
        keras.layers.Conv2D(32, 3, activation="relu", input_shape=(8, 8, 1)),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
parallel_model = multi_gpu_model(model, gpus=2)
parallel_model.compile(
    loss="sparse_categorical_crossentropy", optimizer="adam", metrics=["accuracy"]
)
parallel_model.fit(images[:1437], labels[:1437], batch_size=64, epochs=5, verbose=2)

assert parallel_model.layers[-2] is model
model.compile(
    loss="sparse_categorical_crossentropy", metrics=["accuracy"]
)  # the template has the weights
print(f"test accuracy: {model.evaluate(images[1437:], labels[1437:], verbose=0)[1]:.4f}")
