"""Measures a training step of PyTorch's DistributedDataParallel through gloo, with its defaults.

Timed on rank 0 from the end of one step to the end of the next, and compared with the same workers
training side by side without it. The model is the one of `mlp`.
"""

import time
from itertools import pairwise

import common
import mlp
import torch
import torch_gloo
from torch import nn


def train(worker: common.Worker, steps: int) -> list[float]:
    torch.set_num_threads(1)
    model: nn.Module = build_model()
    if worker.exchange:
        torch_gloo.join(worker)
        model = nn.parallel.DistributedDataParallel(model)
    worker.meet()
    return fit(model, steps)


def build_model() -> nn.Sequential:
    widths = [mlp.INPUT_WIDTH, *mlp.HIDDEN_WIDTHS]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], mlp.CLASSES))


def fit(model: nn.Module, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=mlp.LEARNING_RATE)
    images = torch.rand(mlp.BATCH_PER_WORKER, mlp.INPUT_WIDTH)
    labels = torch.randint(mlp.CLASSES, [mlp.BATCH_PER_WORKER])
    ends = []
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    return ends


if __name__ == "__main__":
    common.step_peer("torch_ddp", train)
