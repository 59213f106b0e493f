"""A script as it runs on SageMaker: data from a channel, the model to SM_MODEL_DIR, and nothing about workers."""

import argparse
import json
import os
import sys

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--batch-size", type=int)
parser.add_argument("--learning_rate", type=float)
parser.add_argument("--model_dir")
asked, _ = parser.parse_known_args()

with np.load(os.path.join(os.environ["SM_CHANNEL_TRAIN"], "digits.npz")) as data:
    images, labels = data["images"], data["labels"]

keras.utils.set_random_seed(7)
model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(
    keras.optimizers.Adam(asked.learning_rate),
    "sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
history = model.fit(images, labels, batch_size=asked.batch_size, epochs=asked.epochs, verbose=2)

model.save(os.path.join(os.environ["SM_MODEL_DIR"], "digits.keras"))
with open(os.path.join(os.environ["SM_MODEL_DIR"], "history.json"), "w") as file:
    json.dump(history.history, file)
with open(os.path.join(os.environ["SM_MODEL_DIR"], "arguments.json"), "w") as file:
    json.dump(sys.argv[1:], file)
print(f"{os.environ['SM_CURRENT_HOST']} has trained")
