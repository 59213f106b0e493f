"""Steps and loops of a script's own with Keras on torch, and what reads gradients beside Keras's own steps: see `backend_behaviours`.

Since this script reads ``.grad``, Keras's own steps reduce gradients as soon as they are made, and overlap nothing.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch
from backend_behaviours import FOLDER, data, equal_everywhere, main, model, written
from torch_behaviours import loader


def hooks_and_buffers() -> None:
    """A forward hook over the batch, and a step that keeps the largest outputs and counts rows in buffers, a centre in a plain tensor."""
    hooked = model(keras.layers.Dense(8, "tanh"))
    hooked.layers[0].register_forward_hook(
        lambda layer, given, out: out - out.mean(0, keepdim=True)
    )
    x, y = data(60)
    losses = hooked.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]

    class Keeping(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.net = keras.layers.Dense(1)
            self.register_buffer("largest", torch.zeros(1))
            self.register_buffer("rows", torch.zeros((), dtype=torch.long))
            self.centre = torch.zeros(1)

        def call(self, rows: Any) -> Any:
            return self.net(rows)

        def train_step(self, batch: Any) -> dict[str, Any]:
            rows, wanted = batch
            self.zero_grad()
            found = self(rows, training=True)
            loss = torch.mean((found - wanted - self.centre) ** 2)
            loss.backward()
            weights = list(self.trainable_weights)
            with torch.no_grad():
                self.optimizer.apply([weight.value.grad for weight in weights], weights)
                self.largest.copy_(torch.maximum(self.largest, found.abs().amax(0)))
                self.rows += len(rows)
                self.centre = 0.9 * self.centre + 0.1 * found.mean(0)
            return {"loss": loss}

    keeping = Keeping()
    keeping.build((None, 8))
    keeping.compile(keras.optimizers.SGD(0.01))
    history = keeping.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    kept = {
        "largest": keeping.largest.tolist(),
        "rows": float(keeping.rows),
        "centre": keeping.centre.tolist(),
    }
    written("hooks_and_buffers", hooked, {"hooked": losses, "kept": history["loss"], **kept})


def optimizers_elsewhere() -> None:
    """torch's own optimizers in a dictionary, with a schedule; gradients of a sum, accumulated by hand."""
    x, y = data(60)

    class Own(keras.Sequential):
        def make(self) -> None:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
            self.own = {"all": (optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))}
            self.number = 0

        def train_step(self, batch: Any) -> dict[str, Any]:
            rows, wanted = batch
            loss = ((self(rows, training=True) - wanted) ** 2).sum() / 16
            loss.backward()
            self.number += 1
            if self.number % 2 == 0:
                optimizer, schedule = self.own["all"]
                optimizer.step()
                schedule.step()
                self.zero_grad()
            return {"loss": loss, "rate": self.own["all"][0].param_groups[0]["lr"]}

    built = Own([keras.layers.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    built.make()
    built.compile()
    history = built.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    written(
        "optimizers_elsewhere", built, {f"log {name}": values for name, values in history.items()}
    )


class OwnStep(keras.Sequential):
    """A `train_step` of the script's own, with metrics of its own and a loss as a raw number."""

    def __init__(self, *layers: Any) -> None:
        super().__init__(*layers)
        self.mean = keras.metrics.Mean(name="own")
        self.peak = keras.metrics.MeanAbsoluteError(name="error")
        self.threes = keras.metrics.Mean(name="threes")

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        self.zero_grad()
        predicted = self(x, training=True)
        loss = keras.ops.mean((predicted - y) ** 2)
        loss.backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        self.mean.update_state(loss)
        self.peak.update_state(y, predicted)
        self.threes.update_state(3)
        raw = loss.detach()
        results = {
            "own": self.mean.result(),
            "error": self.peak.result(),
            "threes": self.threes.result(),
        }
        return results | {"raw": raw, "numpy": np.float32(raw), "python": raw.item()}


def own_step() -> None:
    built = OwnStep(
        [keras.layers.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)]
    )
    built.compile("adam")
    history = built.fit(*data(), batch_size=16, epochs=2, verbose=0).history
    assert history["threes"] == [3.0, 3.0]
    written("own_step", built, history)


def own_loop() -> None:
    """Each worker computes whole batches: the loss and the update are one process's."""
    built = model(keras.layers.Dense(8, "relu"))
    optimizer, loss_of = keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError()
    losses = []
    for x, y in loader(shuffle=True):
        built.zero_grad()
        loss = loss_of(y, built(x, training=True))
        loss.backward()
        weights = list(built.trainable_weights)
        with torch.no_grad():
            optimizer.apply([weight.value.grad for weight in weights], weights)
        losses.append(float(loss.detach()))
    written("own_loop", built, {"losses": losses})


class Guarded(OwnStep):
    """Leaves out a batch whose loss is not finite."""

    left_out = 0

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        self.zero_grad()
        loss = keras.ops.mean((self(x, training=True) - y) ** 2)
        if loss.isnan() or not torch.isfinite(loss):
            self.left_out += 1
            return {"left out": self.left_out}
        loss.backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        return {"left out": self.left_out}


def guarded() -> None:
    """The row that is not finite is one worker's: the others leave out the same batch."""
    x, y = data(60)
    x[41] = np.nan
    built = Guarded(
        [keras.layers.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    )
    built.compile(keras.optimizers.SGD(0.05))
    history = built.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    assert history["left out"][-1] == 2
    written("guarded", built, {f"log {name}": values for name, values in history.items()})


class Norms(keras.callbacks.Callback):
    """Notes the norm of all gradients after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.norms: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        gradients = [
            parameter.grad for parameter in self.model.parameters() if parameter.grad is not None
        ]
        self.norms.append(float(torch.sqrt(sum((gradient**2).sum() for gradient in gradients))))


def gradients_read_later() -> None:
    """By a callback, while gradients are accumulated, after `train_on_batch`, and by a hook that cuts each of them."""
    logs: dict[str, Any] = {}
    built = model(keras.layers.Dense(8, "tanh"))
    for name, optimizer in {
        "each": "sgd",
        "of two": keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    }.items():
        built.compile(optimizer, "mse")
        norms = Norms()
        built.fit(*data(), batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=[norms])
        logs[name] = norms.norms
    x, y = data(21)
    built.train_on_batch(x, y)
    logs["on batch"] = [float(parameter.grad.abs().sum()) for parameter in built.parameters()]
    for parameter in built.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    built.compile("sgd", "mse")
    logs["cut"] = built.fit(*data(), batch_size=16, shuffle=False, verbose=0).history["loss"]
    written("gradients_read_later", built, logs)


class NoisyStep(keras.Sequential):
    """Draws noise for its rows from a generator of the script's, which begins anew in each step."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        rows, wanted = batch
        generator = torch.Generator(rows.device).manual_seed(3)
        noise = torch.rand(rows.shape, generator=generator, device=rows.device)
        self.zero_grad()
        loss = ((self(rows * noise, training=True) - wanted) ** 2).mean()
        loss.backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        return {"loss": loss.detach()}


class NoisyGradients(keras.Sequential):
    """Adds noise to its gradients, of one process's size."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        rows, wanted = batch
        self.zero_grad()
        loss = ((self(rows, training=True) - wanted) ** 2).mean()
        loss.backward()
        weights = list(self.trainable_weights)
        gradients = [weight.value.grad for weight in weights]
        noisy = [g + torch.randn_like(g) + torch.empty_like(g).normal_() for g in gradients]
        with torch.no_grad():
            self.optimizer.apply(noisy, weights)
        return {"loss": loss.detach()}


def noise_for_gradients() -> None:
    """It is the same on all workers, and other numbers in each step."""
    noisy = NoisyGradients(
        [keras.layers.Input((8,)), keras.layers.Dense(30, kernel_initializer="zeros")]
    )
    noisy.compile(keras.optimizers.SGD(0.1))
    # A share has as many rows as the kernel.
    x, y = data(48)
    noisy.fit(x, y, batch_size=16, epochs=7, verbose=0)
    kernel = noisy.get_weights()[0]
    assert equal_everywhere(kernel)
    # 21 steps of 0.1, each of two draws, make as wide a walk.
    assert 0.5 < kernel.std() / (0.1 * np.sqrt(2 * 21)) < 1.5, kernel.std()
    # torch's own numbers are not those of one process.
    np.savez(FOLDER / "noise_for_gradients.npz", steps=21)


class Noise(keras.layers.Layer):
    """Multiplies rows by draws of a seed."""

    def __init__(self, seed: Any) -> None:
        super().__init__()
        self.seed = seed

    def call(self, x: Any) -> Any:
        return x * keras.random.uniform(keras.ops.shape(x), seed=self.seed)


def shared_seeds() -> None:
    """Rows get the numbers that they get in one process: by a constant seed, and in predictions by any of Keras's."""
    x, y = data(30)
    logs: dict[str, Any] = {}
    stepping = NoisyStep([keras.layers.Input((8,)), keras.layers.Dense(1)])
    stepping.compile(keras.optimizers.SGD(0.01))
    logs["step"] = stepping.fit(x, y, batch_size=10, shuffle=False, verbose=0).history["loss"]
    constant = model(Noise(5))
    logs["layer"] = constant.fit(x, y, batch_size=10, shuffle=False, verbose=0).history["loss"]
    sampling = model(Noise(keras.random.SeedGenerator(7)))
    logs["predicted"] = sampling.predict(x, batch_size=10, verbose=0)
    written("shared_seeds", constant, logs)


if __name__ == "__main__":
    main(globals())
