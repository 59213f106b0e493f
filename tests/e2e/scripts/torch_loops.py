"""Loops of a script's own over data loaders on torch, large enough to be split. Prints a line of JSON for each."""

from __future__ import annotations

import gc
import json
import os
import queue
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from syrtos.comm import world
from syrtos.keras.torch.script_loops import ScriptLoops

torch.set_default_dtype(torch.float64)
keras.config.set_floatx("float64")
_WIDE = 1024
# Not on all workers.
SELF = os.getpid() % 2


def show(name: str, found: dict[str, list[float]], *modules: nn.Module) -> None:
    """Prints numbers, and those that stand for weights."""
    weights = (value for each in modules for value in each.state_dict().values())
    found["weights"] = [float(value.double().square().sum()) for value in weights]
    print(json.dumps({"name": name, **found}))


def rows(samples: int = 421) -> TensorDataset:
    random = np.random.default_rng(0)
    x, labels = random.normal(size=(samples, 256)), random.integers(0, 10, samples)
    return TensorDataset(torch.tensor(x), torch.tensor(labels))


def loader(size: int = 128, **options: Any) -> Any:
    keras.utils.set_random_seed(3)
    return DataLoader(rows(), batch_size=size, **options)


def network(outputs: int = 10) -> nn.Module:
    keras.utils.set_random_seed(5)
    layers = [nn.Linear(256, _WIDE), nn.BatchNorm1d(_WIDE), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(_WIDE, _WIDE), nn.GELU(), nn.Linear(_WIDE, outputs))


def is_split(loops: int = 1) -> bool:
    """Returns whether so many loops were split since the last call, where there are several workers."""
    found = world.sharing().part(ScriptLoops)
    count = sum(found._is_split.values())
    found._is_split.clear()
    found._open.clear()
    return world.sharing().world.size == 1 or count == loops


def of_keras() -> None:
    """A model, optimizer, loss and metric of Keras; `evaluate`, `fit` and `predict` inside of the loop."""
    keras.utils.set_random_seed(5)
    layers = [keras.Input((256,)), keras.layers.Dense(_WIDE, "relu"), keras.layers.Dropout(0.3)]
    built = keras.Sequential([*layers, keras.layers.Dense(_WIDE, "relu"), keras.layers.Dense(10)])
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.compile("sgd", loss_of, metrics=["accuracy"])
    optimizer, accuracy = keras.optimizers.Adam(1e-3), keras.metrics.SparseCategoricalAccuracy()
    found: dict[str, list[float]] = {"losses": [], "results": []}
    for number, (x, y) in enumerate(loader(shuffle=True)):
        logits = built(x, training=True)
        loss = loss_of(y, logits)
        built.zero_grad()
        loss.backward()
        weights = built.trainable_weights
        with torch.no_grad():
            optimizer.apply([weight.value.grad for weight in weights], weights)
        accuracy.update_state(y, logits)
        found["losses"].append(float(loss.detach()))
        if number == 2:
            everything = rows().tensors
            found["results"] += built.evaluate(*everything, verbose=0)
            found["results"] += built.train_on_batch(x, y)
            found["results"] += built.fit(*everything, batch_size=100, verbose=0).history["loss"]
            found["results"] += built.predict(x, verbose=0).sum(0).tolist()
    found["results"].append(float(accuracy.result()))
    assert is_split()
    show("of_keras", found, built)


def of_torch() -> None:
    """Accumulated and clipped gradients, a scheduler, tensors that are kept, and one function that trains and validates."""
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    kept: list[torch.Tensor] = []
    norms: list[float] = []

    def run(batches: Any, training: bool) -> None:
        net.train(training)
        for number, (x, y) in enumerate(batches):
            with torch.set_grad_enabled(training):
                loss = functional.cross_entropy(net(x), y, label_smoothing=0.1)
            if training:
                (loss / 2).backward()
                if number % 2:
                    norms.append(float(nn.utils.clip_grad_norm_(net.parameters(), 0.5)))
                    optimizer.step()
                    optimizer.zero_grad()
            kept.append(loss.detach())

    for _ in range(2):
        run(loader(shuffle=True), True)
        run(loader(100), False)
        schedule.step()
    assert is_split()
    show("of_torch", {"losses": torch.stack(kept).tolist(), "norms": norms}, net)


def adversarial() -> None:
    """Two networks, gradients of gradients, of inputs, and rows that a mask chooses."""
    generator = nn.Sequential(nn.Linear(64, _WIDE), nn.ReLU(), nn.Linear(_WIDE, 256))
    critic = network(1)
    ours, theirs = (torch.optim.Adam(each.parameters(), 2e-4) for each in (generator, critic))
    losses, hard = [], []
    for x, _ in loader(shuffle=True, drop_last=True):
        made = generator(torch.randn(len(x), 64))
        between = (torch.rand(len(x), 1) * x + made.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        loss = (critic(made.detach()) - critic(x)).mean() + ((slope.norm(2, 1) - 1) ** 2).mean()
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        ours.zero_grad()
        (-critic(made)).mean().backward()
        ours.step()
        worst = x[critic(x).squeeze(1) < 0]
        hard += [float(len(worst)), float(worst.sum())]
        losses.append(loss.item())
    assert is_split()
    show("adversarial", {"losses": losses, "hard": hard}, generator, critic)


def two_loaders() -> None:
    """Loops that end by `break`, two loaders at once, `next`, a state that goes from batch to batch, and an error."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    losses = []
    state = torch.zeros(_WIDE)

    def train(loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    def endless() -> Iterator[Any]:
        while True:
            yield from loader()

    for number, (x, y) in enumerate(loader(shuffle=True)):
        hidden = net[:4](x)  # pyright: ignore[reportIndexIssue]
        state = (0.9 * state + hidden.mean(0)).detach()
        train(functional.cross_entropy(net(x), y) + (hidden.mean(0) - state).square().sum())
        if number == 2:
            break
    losses.append(float(functional.cross_entropy(net(x), y)))
    for (x, y), (other, _) in zip(loader(shuffle=True), loader(), strict=True):
        both = net(torch.cat([x, other]))
        train(functional.cross_entropy(both[: len(x)], y) + both[len(x) :].softmax(1).var())
    batches = endless()
    for _ in range(5):
        x, y = next(batches)
        train(functional.cross_entropy(net(x), y))
    try:
        for number, (x, y) in enumerate(loader()):
            train(functional.cross_entropy(net(x), y))
            if number == 1:
                raise KeyError(number)
    except KeyError:
        losses.append(float((net(x).argmax(1) == y).double().mean()))
    assert is_split(4)
    show("two_loaders", {"losses": losses, "state": state.tolist()}, net)


def odd_batches() -> None:
    """Arrays, texts and dictionaries with keys of several kinds; losses that come from a generator."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []

    def collate(samples: list[Any]) -> dict[Any, Any]:
        x, y = (torch.stack(each) for each in zip(*samples, strict=True))
        names = [f"row {number}" for number in range(len(x))]
        return {"x": x, 0: y.numpy(), None: names, "sizes": [len(x), (x[:, :1],)]}

    for batch in loader(collate_fn=collate):
        assert isinstance(batch[0], np.ndarray)
        assert batch[None][1] == "row 1"
        parts = net(batch["x"] + batch["sizes"][1][0]).chunk(2)
        labels = torch.from_numpy(batch[0]).chunk(2)
        found = [
            functional.cross_entropy(part, label) for part, label in zip(parts, labels, strict=True)
        ]
        optimizer.zero_grad()
        torch.autograd.backward(loss for loss in found)
        optimizer.step()
        losses += [loss.item() for loss in found]
    assert is_split()
    show("odd_batches", {"losses": losses}, net)


class Looping(keras.Model):
    """A model whose step goes through a loader of its own, and leaves it in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(10)

    def call(self, x: Any) -> Any:
        return self.inner(x)

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y, *_ = batch
        for number, (other, _) in enumerate(DataLoader(rows(60), batch_size=20)):
            self.zero_grad()
            both = self(torch.cat([x, other]))
            loss = functional.cross_entropy(both[: len(x)], y) + both[len(x) :].square().mean()
            loss.backward()
            weights = self.trainable_weights
            with torch.no_grad():
                self.optimizer.apply([weight.value.grad for weight in weights], weights)
            if number:
                break
        return {"loss": loss}


def steps_inside() -> None:
    """A step of a model's own in a loop that is split, and another `fit` afterwards."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    keras.utils.set_random_seed(5)
    stepping = Looping()
    stepping.compile(keras.optimizers.SGD(0.1))
    losses = []
    for number, (x, y) in enumerate(loader(shuffle=True)):
        loss = functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses += [loss.item(), float(stepping.train_on_batch(x, y))]
        if number == 2:
            break
    built = keras.Sequential([keras.Input((256,)), keras.layers.Dense(10)])
    built.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses += built.fit(*rows().tensors, verbose=0).history["loss"]
    assert is_split()
    show("steps_inside", {"losses": losses}, net, stepping, built)


def prefetched() -> None:
    """A thread reads the loader; an iterator that is kept, in a cycle, which Python frees at any time."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []

    def train(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    for _ in range(2):
        batches: queue.Queue[Any] = queue.Queue(2)
        iterator = iter(loader())
        reader = threading.Thread(target=lambda it=iterator, q=batches: [q.put(b) for b in it])
        reader.start()
        for _ in range(4):
            train(*batches.get())
        reader.join()
    for _ in range(2):
        kept: list[Any] = [iter(loader())]
        kept.append(kept)
        train(*next(kept[0]))
        train(*next(kept[0]))
        del kept
        if SELF:
            gc.collect()
    assert is_split()
    show("prefetched", {"losses": losses}, net)


def not_split() -> None:
    """A loop that is too small, or does not train, is computed whole."""
    net = nn.Linear(256, 10)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in loader(16):
        optimizer.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        assert type(x) is torch.Tensor
    built = keras.Sequential(
        [keras.Input((256,)), keras.layers.Dense(4096), keras.layers.Dense(10)]
    )
    built.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = [float(built.train_on_batch(x, y)) for x, y in loader()]
    large = network()
    found = [large(x) for x, _ in loader()]
    assert all(type(each) is torch.Tensor for each in found)
    assert is_split(0)
    show("not_split", {"found": found[-1].detach().sum(0).tolist(), "losses": losses}, net)


if __name__ == "__main__":
    of_all = (of_keras, of_torch, adversarial, two_loaders, odd_batches, steps_inside)
    for loops in (*of_all, prefetched, not_split):
        loops()
