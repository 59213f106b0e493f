"""Recognise handwritten digits: a small convnet on scikit-learn's 8x8 images.

Learns ten classes from 1437 images in about 10 seconds on one core. Expect a test accuracy of 0.986 on the
360 images it never saw.

    python examples/digits.py
    syrtos run -n 2 examples/digits.py
"""

import argparse
import math

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

BATCH = 64


def load() -> list[np.ndarray]:
    """Return train images, test images, train labels and test labels; pixels lie in 0..1."""
    digits = load_digits()
    images = digits.images[..., np.newaxis].astype("float32") / 16
    return train_test_split(images, digits.target, test_size=0.2, random_state=0)


def build() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(128, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Recognise handwritten digits.")
    parser.add_argument("--epochs", type=int, default=15)
    epochs: int = parser.parse_args().epochs

    keras.utils.set_random_seed(1)
    train_images, test_images, train_labels, test_labels = load()

    steps = epochs * math.ceil(len(train_images) / BATCH)
    learning_rate = keras.optimizers.schedules.CosineDecay(2e-3, steps)
    model = build()
    model.compile(
        keras.optimizers.Adam(learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(train_images, train_labels, batch_size=BATCH, epochs=epochs)

    _, accuracy = model.evaluate(test_images, test_labels, batch_size=BATCH, verbose=0)
    print(f"test accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
