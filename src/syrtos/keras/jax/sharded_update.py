"""`--shard-update` on JAX: an optimizer's variables are split over the devices of all processes.

XLA updates each part where it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras import distribution as distribution_lib

from syrtos.comm import world
from syrtos.keras.features import sharding
from syrtos.keras.patching import Method, Patch

if TYPE_CHECKING:
    import keras
    from keras.src.distribution.distribution_lib import Distribution


def _adding(original: Method) -> Method:
    def add_variable_from_reference(
        self: keras.Optimizer,
        reference_variable: keras.Variable,
        name: str | None = None,
        initializer: str | keras.Initializer = "zeros",
    ) -> keras.Variable:
        size = math.prod(reference_variable.shape)
        distribution = distribution_lib.distribution()
        assert distribution is not None
        own = distribution.get_variable_layout(reference_variable)
        # The script has split the model's variable: the optimizer's is split as that is.
        if own is not None and any(own.axes):
            sharding.count(
                self, reference_variable, size // _devices(distribution.device_mesh, own.axes)
            )
            return original(self, reference_variable, name, initializer)
        layout = _split(reference_variable, distribution)
        parts = (
            1
            if layout is None
            else min(_devices(distribution.device_mesh, layout.axes), world.current().world.size)
        )
        sharding.count(self, reference_variable, size // parts)
        reference = sharding.Reference(reference_variable, tuple(reference_variable.shape), layout)
        return original(self, reference, name, initializer)

    return add_variable_from_reference


def _split(
    variable: keras.Variable, distribution: Distribution
) -> distribution_lib.TensorLayout | None:
    """Returns the layout of an optimizer's variable, split by one dimension over the devices.

    ``variable`` is the model's variable to which the optimizer's belongs. The devices are those
    that have batches of their own. The dimension is the first that can be split evenly; None where
    none can.
    """
    count = _devices(distribution.device_mesh, [distribution.batch_dim_name])
    # JAX has no arrays whose parts are unequal.
    axis = next(
        (i for i, length in enumerate(variable.shape) if length and length % count == 0), None
    )
    if axis is None or count == 1:
        return None
    axes = [distribution.batch_dim_name if i == axis else None for i in range(len(variable.shape))]
    return distribution_lib.TensorLayout(axes, distribution.device_mesh)


def _devices(mesh: distribution_lib.DeviceMesh, axes: Sequence[str | None]) -> int:
    """Returns the number of devices along the named axes of a mesh; an axis None does not count."""
    return math.prod(mesh.shape[mesh.axis_names.index(axis)] for axis in axes if axis is not None)


PATCHES = [
    Patch(
        "keras:Optimizer",
        "add_variable_from_reference",
        _adding,
        "The original takes the layout of the model's variable, which is whole on each device.",
    )
]
