"""`--shard-update` on JAX: an optimizer's variables are split over the devices of all processes, and XLA updates each part where it is."""

from __future__ import annotations

import math
from typing import Any

from keras.src.distribution import distribution_lib

from syrtos.comm import world
from syrtos.keras import sharding
from syrtos.keras.patching import Method, Patch


def _adding(original: Method) -> Method:
    def add_variable_from_reference(
        self: Any, reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
    ) -> Any:
        layout = _split(reference_variable)
        size = math.prod(reference_variable.shape)
        sharding.count(self, reference_variable, size if layout is None else size // world.current().world.size)
        reference = sharding.Reference(reference_variable, tuple(reference_variable.shape), layout)
        return original(self, reference, name, initializer)

    return add_variable_from_reference


def _split(variable: Any) -> Any:
    """How an optimizer's variable for one of the model is split: by the first of its dimensions that can be split evenly; None where none can."""
    distribution: Any = distribution_lib.distribution()
    mesh = distribution.device_mesh
    count = math.prod(mesh.shape)
    axis = next((i for i, length in enumerate(variable.shape) if length and length % count == 0), None)
    if axis is None:
        return None
    axes = [distribution.batch_dim_name if i == axis else None for i in range(len(variable.shape))]
    return distribution_lib.TensorLayout(axes, mesh)


PATCHES = [
    Patch(
        "keras.src.optimizers.base_optimizer:BaseOptimizer",
        "add_variable_from_reference",
        _adding,
        "The original takes the layout of the model's variable, which is whole on each device.",
    )
]
