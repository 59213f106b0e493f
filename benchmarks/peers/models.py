"""The models that training steps are measured with. Each is built with the Keras that it is given: Keras 3 or tf_keras."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

LEARNING_RATE: Final = 0.01  # plain SGD, no momentum
Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Model:
    """A classifier, and data for it.

    Attributes:
        parameters: their number.
        batch: samples of one worker in a step.
        build: the model, not compiled; it answers logits.
        data: so many samples and their classes.
    """

    parameters: int
    batch: int
    build: Callable[[Any], Any]
    data: Callable[[int], Arrays]


def mlp(keras: Any) -> Any:
    """Images of 28 x 28; four hidden layers, each 5000 wide: 784*5000 + 3*5000*5000 + 5000*10 weights and 4*5000 + 10 biases."""
    hidden = [keras.layers.Dense(5000, activation="relu") for _ in range(4)]
    return keras.Sequential([keras.Input((784,)), *hidden, keras.layers.Dense(10)])


def images(samples: int) -> Arrays:
    rng = np.random.default_rng(0)
    return rng.random((samples, 784), np.float32), rng.integers(10, size=samples)


WORDS, LENGTH, WIDTH, BLOCKS = 8000, 64, 256, 4


def transformer(keras: Any) -> Any:
    """Names the next of 8000 words at each of 64 places; four blocks of width 256 with four heads."""
    layers = keras.layers
    words = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(words)
    for _ in range(BLOCKS):
        normal = layers.LayerNormalization()(x)
        x = layers.Add()(
            [x, layers.MultiHeadAttention(4, WIDTH // 4)(normal, normal, use_causal_mask=True)]
        )
        normal = layers.LayerNormalization()(x)
        x = layers.Add()(
            [x, layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, activation="relu")(normal))]
        )
    return keras.Model(words, layers.Dense(WORDS)(layers.LayerNormalization()(x)))


def sentences(samples: int) -> Arrays:
    text = np.random.default_rng(0).integers(WORDS, size=(samples, LENGTH + 1))
    return text[:, :-1], text[:, 1:]


def cnn(keras: Any) -> Any:
    """Images of 28 x 28; three convolutions, each with a BatchNormalization, and Dropout."""
    layers = keras.layers
    blocks = []
    for filters in (32, 64, 128):
        blocks += [
            layers.Conv2D(filters, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
        ]
    head = [layers.GlobalAveragePooling2D(), layers.Dropout(0.2), layers.Dense(10)]
    return keras.Sequential([keras.Input((784,)), layers.Reshape((28, 28, 1)), *blocks, *head])


def lstm(keras: Any) -> Any:
    """Names the next of 8000 words at each of 64 places, by two layers of 256 cells."""
    layers = keras.layers
    cells = [layers.LSTM(WIDTH, return_sequences=True) for _ in range(2)]
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            layers.Embedding(WORDS, WIDTH),
            *cells,
            layers.Dense(WORDS),
        ]
    )


MODELS: Final = {
    "mlp": Model(78_990_010, 64, mlp, images),
    "transformer": Model(7_263_552, 8, transformer, sentences),
    "cnn": Model(94_634, 64, cnn, images),
    "lstm": Model(5_154_624, 8, lstm, sentences),
}
