"""`--shard-update` on torch: an optimizer changes this worker's part of each variable in place.

The other workers' parts are gathered into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import keras
import torch

from syrtos.keras.features import sharding
from syrtos.keras.features.sharding import Sharding
from syrtos.keras.patching import Method, Patch
from syrtos.keras.torch import ops
from syrtos.keras.trainer import timing


class _ParameterSlice(sharding.PartStandIn, keras.Variable):
    """A stand-in for a variable in an optimizer's update.

    It is a view of this worker's part of the variable's memory.
    """

    def __init__(self, found: Sharding, owner: keras.Variable) -> None:
        # Not Keras's own `__init__`, which would make a value, and track it.
        part = found.part_of(owner)
        self.owner = owner
        self._name, self._path, self._dtype = owner.name, owner.path, owner._dtype
        self._trainable, self._autocast, self._shape = False, False, part.shape
        self._value = owner.value.detach().view(-1)[part.start : part.stop].view(part.shape)


def _sharding(original: Method) -> Method:
    def backend_update_step(
        self: keras.Optimizer,
        grads: Sequence[torch.Tensor],
        trainable_variables: Iterable[keras.Variable],
        learning_rate: object,
    ) -> None:
        found, variables = sharding.of(self), list(trainable_variables)
        if found is None:
            original(self, grads, variables, learning_rate)
            return
        mine = [
            (_cut(found, g, v), _ParameterSlice(found, v))
            for g, v in zip(grads, variables, strict=True)
        ]
        # Else an empty part is updated too, with what the optimizer keeps for all variables.
        if found.by_variable:
            mine = [(gradient, part) for gradient, part in mine if gradient.numel()]
        with sharding.updating(), torch.no_grad():
            if mine:
                original(
                    self,
                    [gradient for gradient, _ in mine],
                    [part for _, part in mine],
                    learning_rate,
                )
        _gather(found, variables)

    return backend_update_step


def _decaying(original: Method) -> Method:
    def apply_weight_decay(self: keras.Optimizer, variables: Iterable[keras.Variable]) -> None:
        found = sharding.of(self)
        original(
            self,
            variables
            if found is None
            else [_ParameterSlice(found, variable) for variable in variables],
        )

    return apply_weight_decay


def _cut(found: Sharding, gradient: torch.Tensor, variable: keras.Variable) -> torch.Tensor:
    """Returns this worker's part of a gradient, which may be that part already."""
    part = found.part_of(variable)
    whole = gradient.to_dense() if gradient.is_sparse else gradient
    # Between hosts each worker has been sent its part of the sum alone: see
    # `sharding.bounds_between_hosts`.
    if whole.numel() == part.stop - part.start:
        return whole.reshape(part.shape)
    return whole.reshape(-1)[part.start : part.stop].view(part.shape)


def _gather(found: Sharding, variables: Sequence[keras.Variable]) -> None:
    """Writes the other workers' parts into the variables."""
    tensors: list[torch.Tensor] = [variable.value.detach() for variable in variables]
    for bucket in ops.buckets(tensors):
        # On a CPU these are the variables' own memory, and are filled in place.
        arrays = [ops.array_of(tensors[i]).reshape(-1) for i in bucket]
        with timing.exchanging():
            found.gather(arrays, [variables[i] for i in bucket])
        for i, array in zip(bucket, arrays, strict=True):
            if not tensors[i].is_cpu:
                tensors[i].copy_(ops.tensor_of(array, tensors[i]).view(tensors[i].shape))


_OPTIMIZER = "keras:Optimizer"
_TORCH = "keras.src.backend.torch.optimizers"
_PARALLEL = f"{_TORCH}.torch_parallel_optimizer:TorchParallelOptimizer"
_UPDATE = "What changes variables, after gradients are reduced and clipped."

PATCHES = [
    *sharding.PATCHES,
    Patch(
        _OPTIMIZER,
        "_var_key",
        sharding.of_owner,
        "By it an optimizer finds what it keeps for a variable.",
    ),
    Patch(_OPTIMIZER, "_backend_update_step", _sharding, _UPDATE),
    Patch(_PARALLEL, "_backend_update_step", _sharding, _UPDATE),
    Patch(
        f"{_TORCH}.torch_optimizer:TorchOptimizer",
        "_apply_weight_decay",
        _decaying,
        "Each worker's part decays.",
    ),
]
