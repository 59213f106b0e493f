"""A training of some seconds, whose first batches `syrtos check` compares on workers and in one process."""

from __future__ import annotations

import keras
import numpy as np


def main() -> None:
    """Trains a small network on generated images."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(1)
    images, labels = rng.normal(size=(96, 8, 8, 1)), rng.integers(0, 4, 96)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(4),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(images, labels, batch_size=32, epochs=1, verbose="0")


if __name__ == "__main__":
    main()
