"""Private symbols of TensorFlow that tell what XLA can compile.

They have been seen to work on TensorFlow 2.21.
"""

from __future__ import annotations

import functools

import tensorflow as tf
from tensorflow.python.framework import kernels

from syrtos.keras.tensorflow import tf_internals_emission

# Of such numbers each worker would draw its own: XLA seeds them by itself.
_DRAWING = frozenset(
    (
        *("RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt"),
        *("RandomShuffle", "Multinomial", "RandomGamma", "RandomPoissonV2"),
    )
)
_LOOPS = ("While", "StatelessWhile")
_ABSENT = ("Placeholder", "NoOp", "Const")


def compiles(operation: tf.Operation) -> bool:
    """Returns whether XLA compiles an operation, with the functions that it calls."""
    called = tf_internals_emission.operations_called(operation)
    return all(map(_compiles_alone, (operation, *called)))


def _compiles_alone(operation: tf.Operation) -> bool:
    dtypes = {tensor.dtype for tensor in (*operation.inputs, *operation.outputs)}
    # A program for any number of rows leaves the shapes of the lists' elements open, of which XLA
    # then does not know the length.
    if tf.string in dtypes or (operation.type in _LOOPS and tf.variant in dtypes):
        return False
    return operation.type in _ABSENT or _has_kernel(operation.type)


@functools.cache
def _has_kernel(kind: str) -> bool:
    if kind in _DRAWING:
        return False
    _register_kernels()
    device = "XLA_GPU_JIT" if tf.config.list_logical_devices("GPU") else "XLA_CPU_JIT"
    found = kernels.get_registered_kernels_for_op(kind).kernel
    return any(kernel.device_type == device for kernel in found)


@functools.cache
def _register_kernels() -> None:
    """Lets TensorFlow list XLA's kernels, which it does once it has compiled something."""
    with tf.init_scope():
        tf.function(lambda: tf.constant(0) + 1, jit_compile=True)()
