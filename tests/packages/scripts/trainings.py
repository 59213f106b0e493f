"""Small trainings of packages that extend Keras: `python tests/packages/scripts/trainings.py NAME FILE`, plain or under `syrtos run`.

Each knows nothing of workers, and returns what it has learned and logged. The arrays are written to FILE, with a worker's rank at the
end of its name.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Training:
    """A training of a package.

    Attributes:
        run: trains, and returns arrays by their names.
        backends: those of Keras that the package is used with here.
        tolerance: the largest difference from one process, of the largest number of an array.
    """

    run: Callable[[], Arrays]
    backends: tuple[str, ...]
    tolerance: float


TRAININGS: dict[str, Training] = {}


def training(
    *backends: str, tolerance: float = 1e-5
) -> Callable[[Callable[[], Arrays]], Callable[[], Arrays]]:
    """Registers a function under its name."""

    def register(function: Callable[[], Arrays]) -> Callable[[], Arrays]:
        TRAININGS[function.__name__] = Training(function, backends, tolerance)
        return function

    return register


def digits(samples: int = 333) -> tuple[Any, Any]:
    """Returns handwritten digits, (samples, 64) in 0 to 1, and their classes."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images[:samples] / 16).astype("float32"), labels[:samples].astype("int32")


def learned(model: Any, history: Any) -> Arrays:
    """Returns the weights of a model, in their order, and the logs of its training."""
    weights = {f"weight {n}": np.asarray(w) for n, w in enumerate(model.get_weights())}
    return weights | {name: np.asarray(values) for name, values in history.history.items()}


# -- scikit-learn -------------------------------------------------------------------------------------


@training("tensorflow", "jax")
def scikeras_grid_search() -> Arrays:
    import keras
    from scikeras.wrappers import KerasClassifier
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def network(meta: dict[str, Any], width: int) -> Any:
        return keras.Sequential(
            [
                keras.Input((meta["n_features_in_"],)),
                keras.layers.Dense(width, activation="relu"),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(meta["n_classes_"], activation="softmax"),
            ]
        )

    classifier = KerasClassifier(
        network,
        width=16,
        loss="sparse_categorical_crossentropy",
        optimizer="adam",
        epochs=2,
        batch_size=32,
        random_state=3,
        verbose=0,
    )
    search = GridSearchCV(
        make_pipeline(StandardScaler(), classifier),
        {"kerasclassifier__width": [8, 16]},
        cv=2,
        scoring="neg_log_loss",
    )
    x, y = digits()
    search.fit(x, y)
    return {
        "scores": search.cv_results_["mean_test_score"],
        "probabilities": search.predict_proba(x),
    }


# -- layers -------------------------------------------------------------------------------------------


@training("tensorflow", "jax", "torch")
def keras_tcn_sequence() -> Arrays:
    import keras
    from tcn import TCN

    x, y = digits()
    model = keras.Sequential(
        [
            keras.Input((8, 8)),
            TCN(8, kernel_size=2, dilations=(1, 2, 4), dropout_rate=0.1, use_batch_norm=True),
            keras.layers.Dense(10),
        ]
    )
    # SGD: biases before BatchNormalization have gradients of rounding alone, which Adam would enlarge.
    model.compile(
        keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    history = model.fit(x.reshape(-1, 8, 8), y, batch_size=50, epochs=2, verbose=0)
    return learned(model, history)


@training("tensorflow", "jax", "torch")
def hgq2_quantized_network() -> Arrays:
    import keras
    from hgq.config import LayerConfigScope, QuantizerConfigScope
    from hgq.layers import QDense

    x, y = digits()
    with (
        QuantizerConfigScope(place="all", default_q_type="kbi", overflow_mode="sat_sym"),
        QuantizerConfigScope(place="datalane", default_q_type="kif", overflow_mode="wrap"),
        LayerConfigScope(enable_ebops=True, beta0=1e-5),
    ):
        model = keras.Sequential([keras.Input((64,)), QDense(16, activation="relu"), QDense(10)])
    model.compile(
        keras.optimizers.Adam(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return learned(model, model.fit(x, y, batch_size=64, epochs=2, verbose=0))


@training("tensorflow", "jax", "torch")
def keras_rs_ranking() -> Arrays:
    import keras
    import keras_rs

    rng = np.random.default_rng(2)
    users, items = rng.integers(0, 40, (2, 300))
    rating = np.cos(users + items * 0.3).astype("float32")
    user, item = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    tables = [keras.layers.Embedding(40, 8)(user), keras.layers.Embedding(40, 8)(item)]
    crossed = keras_rs.layers.FeatureCross()(keras.ops.concatenate(tables, axis=-1))
    dots = keras_rs.layers.DotInteraction()(tables)
    output = keras.layers.Dense(1)(keras.ops.concatenate([crossed, dots], axis=-1))
    model = keras.Model([user, item], output)
    model.compile(keras.optimizers.Adagrad(0.1), "mse")
    history = model.fit([users, items], rating, batch_size=64, epochs=2, verbose=0)
    return learned(model, history)


# On JAX it fails in one process too: two variables share a buffer that the step gives away.
@training("tensorflow", "torch")
def keras_rs_retrieval() -> Arrays:
    import keras
    import keras_rs

    class Retrieval(keras.Model):
        """Two towers, whose batch gives the negatives."""

        def __init__(self) -> None:
            super().__init__()
            self.users = keras.layers.Embedding(40, 8)
            self.items = keras.layers.Embedding(40, 8)
            self.find = keras_rs.layers.BruteForceRetrieval(k=5, return_scores=False)
            self.remove_hits = keras_rs.layers.RemoveAccidentalHits()
            self.correct = keras_rs.layers.SamplingProbabilityCorrection()
            self.loss_of_pairs = keras.losses.CategoricalCrossentropy(
                from_logits=True, reduction="sum"
            )

        def build(self, _shape: object) -> None:
            self.users.build((None,))
            self.items.build((None,))
            self.find.update_candidates(self.items.embeddings)
            self.built = True

        def call(self, inputs: Any, training: bool = False) -> Any:
            del training
            return self.users(inputs)

        def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: object, **__: object) -> Any:
            del x
            scores = keras.ops.matmul(y_pred, keras.ops.transpose(self.items(y)))
            scores = self.correct(scores, keras.ops.full(keras.ops.shape(y), 0.1))
            labels = keras.ops.eye(keras.ops.shape(scores)[0])
            scores = self.remove_hits(scores, labels, y)
            return self.loss_of_pairs(labels, scores)

    keras.utils.set_random_seed(4)
    rng = np.random.default_rng(2)
    users, items = rng.integers(0, 40, (2, 300))
    model = Retrieval()
    if keras.config.backend() != "tensorflow":  # there a step makes what it lacks
        model.build((None,))
    model.compile(keras.optimizers.Adagrad(0.05))
    return learned(model, model.fit(users, items, batch_size=64, epochs=2, verbose=0))


# -- language models ----------------------------------------------------------------------------------


def _tokens(vocabulary: int) -> Any:
    return np.random.default_rng(5).integers(1, vocabulary, (70, 12)).astype("int32")


@training("tensorflow", "jax", "torch")
def keras_hub_bert() -> Arrays:
    import keras
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=50, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32, max_sequence_length=12
    )  # fmt: skip
    model = keras_hub.models.BertTextClassifier(backbone=backbone, num_classes=3, preprocessor=None)
    # SGD: the gradient of a key's bias is rounding alone.
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    tokens = _tokens(50)
    inputs = {
        "token_ids": tokens,
        "segment_ids": np.zeros_like(tokens),
        "padding_mask": (np.arange(12) < 6 + tokens[:, :1] % 6).astype("int32"),
    }
    return learned(model, model.fit(inputs, tokens[:, 0] % 3, batch_size=16, epochs=2, verbose=0))


@training("tensorflow", "jax", "torch")
def keras_hub_gpt2_lora() -> Arrays:
    import keras
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=50, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32, max_sequence_length=12
    )  # fmt: skip
    backbone.enable_lora(2)
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    tokens = _tokens(50)
    mask = (np.arange(12) < 6 + tokens[:, :1] % 6).astype("float32")
    inputs = {"token_ids": tokens, "padding_mask": mask.astype("int32")}
    labels = np.roll(tokens, -1, axis=1)
    history = model.fit(inputs, labels, sample_weight=mask, batch_size=16, epochs=2, verbose=0)
    return learned(model, history)


@training("tensorflow", "jax", "torch", tolerance=5e-5)
def keras_hub_gemma() -> Arrays:
    import keras
    import keras_hub

    backbone = keras_hub.models.GemmaBackbone(
        vocabulary_size=50, num_layers=2, num_query_heads=2, num_key_value_heads=1, hidden_dim=16, intermediate_dim=32, head_dim=8
    )  # fmt: skip
    model = keras_hub.models.GemmaCausalLM(backbone=backbone, preprocessor=None)
    model.compile(
        keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    tokens = _tokens(50)
    inputs = {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}
    labels = np.roll(tokens, -1, axis=1)
    return learned(model, model.fit(inputs, labels, batch_size=16, epochs=2, verbose=0))


# -- inference and search -----------------------------------------------------------------------------


@training("tensorflow", "jax", "torch", tolerance=1e-4)
def bayesflow_posterior() -> Arrays:
    import bayesflow
    import keras

    rng = np.random.default_rng(6)
    keras.utils.set_random_seed(6)
    slope = rng.normal(size=(160, 2)).astype("float32")
    seen = (slope[:, None, :] + rng.normal(size=(160, 5, 2))).astype("float32")
    workflow = bayesflow.BasicWorkflow(
        inference_network=bayesflow.networks.CouplingFlow(
            depth=2, subnet_kwargs={"widths": (16, 16)}
        ),
        summary_network=bayesflow.networks.DeepSet(summary_dim=4, depth=1),
        inference_variables=["slope"],
        summary_variables=["seen"],
        standardize=None,
    )
    history = workflow.fit_offline(
        {"slope": slope, "seen": seen}, epochs=2, batch_size=32, verbose=0
    )
    return learned(workflow.approximator, history)


@training("tensorflow", "jax", "torch")
def keras_tuner_search() -> Arrays:
    import keras
    import keras_tuner

    def network(choices: Any) -> Any:
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(choices.Int("width", 8, 32, step=8), activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            keras.optimizers.Adam(choices.Float("rate", 1e-3, 1e-1, sampling="log")),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        return model

    x, y = digits()
    tuner = keras_tuner.RandomSearch(
        network, "val_loss", max_trials=3, seed=1, directory="search", overwrite=True
    )
    tuner.search(x, y, batch_size=50, epochs=2, validation_split=0.2, verbose=0)
    trials = tuner.oracle.get_best_trials(3)
    return {
        "scores": np.asarray([trial.score for trial in trials]),
        "rates": np.asarray([trial.hyperparameters.get("rate") for trial in trials]),
        **{f"weight {n}": w for n, w in enumerate(tuner.get_best_models(1)[0].get_weights())},
    }


# -- frameworks under Keras ---------------------------------------------------------------------------


@training("torch")
def torchmetrics_in_a_step() -> Arrays:
    import keras
    import torch
    import torchmetrics

    counts = {
        "accuracy": torchmetrics.Accuracy(task="multiclass", num_classes=10),
        "f1": torchmetrics.F1Score(task="multiclass", num_classes=10, average="macro"),
    }

    class Classifier(keras.Model):
        """Counts by torchmetrics what Keras's metrics would."""

        def __init__(self) -> None:
            super().__init__()
            self.hidden = keras.layers.Dense(16, activation="relu")
            self.scores = keras.layers.Dense(10)

        def call(self, inputs: Any) -> Any:
            return self.scores(self.hidden(inputs))

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            self.zero_grad()
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted)
            loss.backward()
            weights = list(self.trainable_weights)
            with torch.no_grad():
                self.optimizer.apply([w.value.grad for w in weights], weights)
            for metric in counts.values():
                metric.update(predicted, y)
            return {"loss": loss, **{name: metric.compute() for name, metric in counts.items()}}

    x, y = digits()
    model = Classifier()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return learned(model, model.fit(x, y.astype("int64"), batch_size=50, epochs=2, verbose=0))


@training("jax")
def flax_layer() -> Arrays:
    import flax.linen as nn
    import keras

    class Block(nn.Module):
        """A convolution with statistics and a mask of Flax's own."""

        @nn.compact
        def __call__(self, inputs: Any, training: bool) -> Any:
            x = nn.Conv(4, (3, 3), use_bias=False)(inputs)
            x = nn.BatchNorm(use_running_average=not training)(x)
            return nn.Dropout(0.1)(nn.relu(x), deterministic=not training)

    x, y = digits()
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.FlaxLayer(Block()),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(x.reshape(-1, 8, 8, 1), y, batch_size=50, epochs=2, verbose=0)
    return learned(model, history)


# -- data ---------------------------------------------------------------------------------------------


def _classifier() -> Any:
    import keras

    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(10)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@training("tensorflow")
def datasets_to_tensorflow() -> Arrays:
    import datasets

    x, y = digits()
    rows = datasets.Dataset.from_dict({"image": x.tolist(), "label": y.tolist()})
    rows = rows.map(lambda row: {"image": [number * 2 - 1 for number in row["image"]]})
    batches = rows.to_tf_dataset(columns="image", label_cols="label", batch_size=50, shuffle=True)
    model = _classifier()
    return learned(model, model.fit(batches, epochs=2, verbose=0))


@training("torch")
def datasets_to_torch() -> Arrays:
    import datasets
    import torch

    x, y = digits()
    rows = datasets.Dataset.from_dict({"image": x.tolist(), "label": y.tolist()})
    rows = rows.with_format("torch")

    def pair(batch: list[dict[str, Any]]) -> tuple[Any, Any]:
        return torch.stack([row["image"] for row in batch]), torch.stack(
            [r["label"] for r in batch]
        )

    torch.manual_seed(2)
    loader = torch.utils.data.DataLoader(rows, 50, shuffle=True, collate_fn=pair)
    model = _classifier()
    return learned(model, model.fit(loader, epochs=2, verbose=0))


@training("tensorflow", "jax", "torch")
def grain_pipeline() -> Arrays:
    import grain

    x, y = digits()
    rows = grain.MapDataset.source(list(zip(x, y, strict=True))).shuffle(seed=3)
    batches = rows.map(lambda row: (row[0] * 2 - 1, row[1])).batch(50)
    model = _classifier()
    return learned(model, model.fit(batches, epochs=2, verbose=0))


def main() -> None:
    """Runs a training, and writes its arrays."""
    name, path = sys.argv[1:]
    import keras

    keras.utils.set_random_seed(1)
    arrays = TRAININGS[name].run()
    rank = os.environ.get("PMI_RANK", "0")
    np.savez(f"{path}-{rank}.npz", **{key: np.asarray(value) for key, value in arrays.items()})


if __name__ == "__main__":
    main()
