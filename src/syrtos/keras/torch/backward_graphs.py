"""The graph that autograd has of a loss: its parameters, and what its step computes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import GradientEdge

from syrtos.keras.torch import torch_internals
from syrtos.keras.torch.partition.placed import PlacedTensor

if TYPE_CHECKING:
    from torch.autograd.graph import Node

    from syrtos.keras.torch.partition.step import Roots

# What one worker does in a second on a processor with one thread, and on a GPU: operations.
_OPERATIONS = {"cpu": 4e10, "cuda": 1e13}
# What a partitioned step takes more than a plain one for each node of its graph (an operation, and
# what it computes backward), and what its exchange takes: seconds, seconds for a byte. Measured with
# torch 2.13 and two workers on 2 cores.
_NODE, _EXCHANGE, _BYTE = 1.5e-4, 1e-3, 2.5e-10
_PRODUCTS = ("MmBackward0", "AddmmBackward0", "BmmBackward0", "BaddbmmBackward0")


def parameters_of(roots: Roots) -> list[torch.Tensor]:
    """Returns the tensors whose ``.grad`` a call of ``backward`` of these adds to.

    Those that workers have in parts, e.g. inputs, are left out.
    """
    nodes = (node for node in _nodes_of(roots) if node.name().endswith("AccumulateGrad"))
    found = (getattr(node, "variable", None) for node in nodes)
    return [
        variable
        for variable in found
        if isinstance(variable, torch.Tensor) and not isinstance(variable, PlacedTensor)
    ]


def saves_time(roots: Roots, workers: int) -> bool:
    """Returns whether workers that split a step save more time than they lose.

    The estimate is from the products and convolutions of the graph of its loss, before it is freed.
    """
    nodes = list(_nodes_of(roots))
    work = 3 * sum(map(_operations, nodes))  # forward, and twice that backward
    nbytes = sum(p.numel() * p.element_size() for p in parameters_of(roots))
    tensors = (root for root in _as_sequence(roots) if isinstance(root, torch.Tensor))
    device = next((root.device.type for root in tensors), "cpu")
    rate = _OPERATIONS.get(device, _OPERATIONS["cuda"])
    return work / rate * (1 - 1 / workers) > len(nodes) * _NODE + _EXCHANGE + nbytes * _BYTE


def _as_sequence(roots: Roots) -> Sequence[torch.Tensor | GradientEdge]:
    return [roots] if isinstance(roots, torch.Tensor | GradientEdge) else roots


def _nodes_of(roots: Roots) -> Iterator[Node]:
    """Yields the nodes of a graph, each once."""
    waiting = [
        root.node if isinstance(root, GradientEdge) else root.grad_fn
        for root in _as_sequence(roots)
    ]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
        yield node


def _operations(node: Node) -> float:
    """Returns the floating-point operations of the forward computation of a node.

    It is counted for products, convolutions and attention, which workers split: others are small, or
    computed whole, as recurrent layers of torch's are.
    """
    name = node.name()
    results = torch_internals.shapes_of_outputs(node)
    given = [
        next(iter(torch_internals.shapes_of_outputs(operand)), None) if operand else None
        for operand, _ in node.next_functions
    ]
    if not results:
        return 0.0
    result = results[0]
    if name in _PRODUCTS:
        left, right = given[-2:]
        terms = left[-1] if left else right[-2] if right else 0
        return 2.0 * math.prod(result) * terms
    if name == "ConvolutionBackward0" and (kernel := given[1]):
        return 2.0 * math.prod(result) * math.prod(kernel) / max(kernel[0], 1)
    if name.startswith("ScaledDotProduct") and len(given) > 1 and (keys := given[1]):
        return 4.0 * math.prod(result) * keys[-2]
    return 0.0
