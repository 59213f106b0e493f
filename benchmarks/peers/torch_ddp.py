"""Measures a training step of PyTorch's DistributedDataParallel through gloo, with its defaults, around a Keras model.

Timed on rank 0 from the end of one step to the end of the next, and compared with the same workers
training side by side without it. The loop and the optimizer are torch's.
"""

import os
import time

os.environ["KERAS_BACKEND"] = "torch"

import common
import models
import torch
import torch_gloo
from torch import nn


def train(worker: common.Worker, kind: models.Model, steps: int) -> list[float]:
    import keras

    torch.set_num_threads(1)
    model: nn.Module = kind.build(keras)
    if worker.exchange:
        torch_gloo.join(worker)
        model = nn.parallel.DistributedDataParallel(model)
    worker.meet()
    return fit(model, kind, steps)


def fit(model: nn.Module, kind: models.Model, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=models.LEARNING_RATE)
    inputs, classes = (torch.from_numpy(array) for array in kind.data(kind.batch))
    ends = []
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(inputs)
        nn.functional.cross_entropy(logits.flatten(0, -2), classes.flatten()).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    return ends


if __name__ == "__main__":
    common.step_peer("torch_ddp", train)
