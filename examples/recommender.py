"""Recommend items to users: a factorization model with 96 million embedding weights.

1.4 million users and 100 000 items get 64 numbers each; the dot product says whether a click follows. The clicks
come from a hidden model of rank 2, so the best possible AUC is 0.88 and guessing gives 0.50.
Takes about two minutes and 2.3 GB of memory; expect a test AUC of 0.75 or a little more.

    python examples/recommender.py
    syrtos run -n 2 examples/recommender.py
"""

import argparse

import keras
import numpy as np

USERS, ITEMS, WIDTH = 1_400_000, 100_000, 64
HIDDEN_RANK = 2
TRAIN, TEST = 8_000_000, 200_000
BATCH = 8192


def popular_first(random: np.random.Generator, population: int, count: int) -> np.ndarray:
    """Draw ids of which the low ones are common and the high ones rare, as in any shop."""
    return (population * random.random(count) ** 4).astype("int32")


def clicks(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return users, items and whether each user clicked on the item shown."""
    random = np.random.default_rng(0)
    tastes = random.standard_normal((USERS, HIDDEN_RANK), dtype="float32")
    traits = random.standard_normal((ITEMS, HIDDEN_RANK), dtype="float32")
    users = popular_first(random, USERS, count)
    items = popular_first(random, ITEMS, count)
    affinity = 3 * (tastes[users] * traits[items]).sum(axis=1) / np.sqrt(HIDDEN_RANK)
    clicked = random.random(count) < 1 / (1 + np.exp(-affinity))
    return users, items, clicked.astype("float32")


def build() -> keras.Model:
    small = keras.initializers.RandomNormal(stddev=0.01)
    user = keras.Input((), dtype="int32", name="user")
    item = keras.Input((), dtype="int32", name="item")
    user_vector = keras.layers.Embedding(USERS, WIDTH, embeddings_initializer=small, name="users")(
        user
    )
    item_vector = keras.layers.Embedding(ITEMS, WIDTH, embeddings_initializer=small, name="items")(
        item
    )
    return keras.Model([user, item], keras.layers.Dot(axes=-1)([user_vector, item_vector]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Recommend items to users.")
    parser.add_argument("--epochs", type=int, default=2)
    epochs: int = parser.parse_args().epochs

    keras.utils.set_random_seed(0)
    users, items, clicked = clicks(TRAIN + TEST)
    test = ([users[TRAIN:], items[TRAIN:]], clicked[TRAIN:])

    model = build()
    # Plain SGD updates only the rows in the batch; Adam would rewrite all 96 million weights in every step.
    # A row is in few of the batch's examples and the loss is their mean: hence a rate that grows with the batch.
    model.compile(
        keras.optimizers.SGD(learning_rate=0.1 * BATCH),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.AUC(from_logits=True, name="auc")],
    )
    print(f"{model.count_params():,} weights")
    print(f"test AUC before: {model.evaluate(*test, batch_size=BATCH, verbose=0)[1]:.3f}")
    model.fit(
        [users[:TRAIN], items[:TRAIN]], clicked[:TRAIN], batch_size=BATCH, epochs=epochs, verbose=2
    )
    print(f"test AUC after: {model.evaluate(*test, batch_size=BATCH, verbose=0)[1]:.3f}")


if __name__ == "__main__":
    main()
