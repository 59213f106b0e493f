"""`hvd.DistributedOptimizer` and `hvd.DistributedGradientTape`, with their reductions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf

from syrtos.api import unconverted
from syrtos.comm.communicator import ReduceOp
from syrtos.comm.inprocess import InProcessCommunicator
from syrtos.dialects import keras2
from syrtos.dialects.horovod.basics import ProcessSet, comm_of, global_process_set
from syrtos.dialects.horovod.compression import Compression
from syrtos.dialects.horovod.computed import ComputedGradients, Passes
from syrtos.dialects.horovod.ops import Adasum, Average, Sum
from syrtos.errors import ConfigurationError
from syrtos.keras import updates
from syrtos.keras.replica import state
from syrtos.keras.tensorflow import gradients
from syrtos.keras.tensorflow.reduction import Reduction

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from syrtos.dialects.protocols import DialectLayer, DialectOptimizer, DialectVariable
    from syrtos.keras.tensorflow import reduction
    from syrtos.keras.tensorflow.types import Gradient

OptimizerT = TypeVar("OptimizerT", bound="DialectOptimizer")
# Variables that travel together, or their number of groups.
Groups = int | Sequence[Sequence["DialectVariable"]] | None


def DistributedOptimizer(
    optimizer: OptimizerT,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: reduction.GradientCompression = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> OptimizerT:
    """Makes a Keras optimizer reduce its gradients over the workers before it applies them.

    The optimizer itself is returned, with what it has learnt so far. Before its first step all
    workers get rank 0's weights.

    Raises:
        ConfigurationError: it is not an optimizer of Keras.
        ValueError: options that exclude each other, or an op that gradients are not reduced by.
    """
    del name, use_locking, device_dense, device_sparse
    if op not in (Average, Sum):
        raise ValueError(
            f"op must be hvd.Average or hvd.Sum for a Keras optimizer. Received: {op}."
        )
    reduction = _reduction(
        op, compression, sparse_as_dense, gradient_predivide_factor, num_groups, groups, process_set,
        scale_local_gradients,
        factor=1.0 if average_aggregated_gradients else float(backward_passes_per_step),
    )  # fmt: skip
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not keras2.is_optimizer(inner):
        raise ConfigurationError(
            "hvd.DistributedOptimizer takes Keras optimizers. Received:"
            f" {type(optimizer).__name__}. Optimizers of TensorFlow 1 (tf.compat.v1.train) have a"
            " Keras one of the same name; loops of one's own use hvd.DistributedGradientTape."
        )
    if backward_passes_per_step > 1:
        keras2.accumulate(inner, backward_passes_per_step)
        object.__setattr__(optimizer, "_agg_helper", Passes(inner, backward_passes_per_step))
    updates.set_reduction(inner, reduction)
    if hasattr(optimizer, "minimize"):
        ComputedGradients(optimizer)
    # Keras's own `__setattr__` tracks what it is given.
    object.__setattr__(
        optimizer, "register_local_var", lambda variable: _keep_local(reduction, [variable])
    )
    return optimizer


class DistributedGradientTape(gradients.ReducingTape):
    """A tape whose gradients are reduced over the workers."""

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: reduction.GradientCompression = Compression.none,
        sparse_as_dense: bool = False,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Groups = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        """Wraps a tape that has recorded, or that will.

        Raises:
            ValueError: options that exclude each other, or an op that gradients are not reduced by.
        """
        del device_dense, device_sparse
        if op not in (Average, Sum, Adasum):
            raise ValueError(f"op must be hvd.Average, hvd.Sum or hvd.Adasum. Received: {op}.")
        super().__init__(
            gradtape,
            _reduction(
                op,
                compression,
                sparse_as_dense,
                gradient_predivide_factor,
                num_groups,
                groups,
                process_set,
                scale_local_gradients,
            ),
        )

    def register_local_source(self, source: DialectVariable) -> None:
        """Leaves the gradients of a variable to each worker."""
        _keep_local(self._reduction, [source])

    @unconverted
    def gradient(
        self,
        target: object,
        sources: object,
        output_gradients: object = None,
        use_generic_names: bool = False,
    ) -> Any:
        """Returns reduced gradients in the structure of ``sources``; None where there is none."""
        del use_generic_names
        return super().gradient(target, sources, output_gradients)

    def get_local_and_global_gradients(
        self,
        target: object,
        sources: Sequence[DialectVariable],
        output_gradients: object = None,
        use_generic_names: bool = False,
    ) -> tuple[
        list[tuple[DialectVariable, Gradient | None]], list[tuple[DialectVariable, Gradient | None]]
    ]:
        """Returns pairs of (variable, gradient): of the local variables, and of the others."""
        pairs = list(
            zip(
                sources,
                self.gradient(target, sources, output_gradients, use_generic_names),
                strict=True,
            )
        )
        local = self._reduction.local
        return (
            [pair for pair in pairs if state.identity(pair[0]) in local],
            [pair for pair in pairs if state.identity(pair[0]) not in local],
        )


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    *args: Any,
    local_layers: DialectLayer | Iterable[DialectLayer] | None = None,
    **kwargs: Any,
) -> DistributedGradientTape:
    """Makes a `DistributedGradientTape` with local variables.

    The variables of ``local_layers`` are left to each worker.
    """
    tape = DistributedGradientTape(gradtape, *args, **kwargs)
    for variable in variables_of_layers(local_layers):
        tape.register_local_source(variable)
    return tape


def load_model(
    filepath: str | os.PathLike[str],
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, object] | None = None,
    compression: reduction.GradientCompression = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a Keras model whose optimizer, if it has one, reduces its gradients."""
    del legacy_opts
    objects = {**(custom_objects or {}), **{cls.__name__: cls for cls in custom_optimizers or []}}
    model = keras2.keras().models.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model


def _reduction(
    op: ReduceOp,
    compression: reduction.GradientCompression,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    num_groups: int,
    groups: Groups,
    process_set: ProcessSet,
    scale_local_gradients: bool,
    factor: float = 1.0,
) -> Reduction:
    """Checks the options, and returns how gradients are reduced."""
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups and groups is not None:
        raise ValueError("num_groups and groups exclude each other.")
    if groups is not None and not (
        isinstance(groups, list) or (isinstance(groups, int) and groups >= 0)
    ):
        raise ValueError(
            "groups must be a non-negative integer or a list of lists of variables. Received:"
            f" {groups!r}."
        )
    # A worker outside the set trains by itself.
    comm = comm_of(process_set) if process_set.included() is not False else InProcessCommunicator()
    # `gradient_predivide_factor` and `groups` are left out: dividing before and after the sum is
    # one division here, and groups are formed by size anyway.
    return Reduction(
        comm,
        op,
        factor,
        None if compression is Compression.none else compression,
        sparse_as_dense,
        local_factor=1.0 / comm.size if scale_local_gradients else 1.0,
    )


def _keep_local(reduction: Reduction, variables: Iterable[DialectVariable]) -> None:
    reduction.local.update({state.identity(variable): variable for variable in variables})


def variables_of_layers(
    layers: DialectLayer | Iterable[DialectLayer] | None,
) -> list[DialectVariable]:
    """Returns the trainable variables of one layer or several."""
    found = [layers] if _is_layer(layers) else list(layers or [])
    return [variable for layer in found for variable in layer.trainable_weights]


def _is_layer(layers: DialectLayer | Iterable[DialectLayer] | None) -> TypeIs[DialectLayer]:
    return hasattr(layers, "trainable_weights")
