"""Types of TensorFlow's values, and the members of private classes that syrtos uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import tensorflow as tf

if TYPE_CHECKING:
    from tensorflow._aliases import TensorCompatible

    # What Keras takes as a gradient.
    GradientLike = tf.Tensor | tf.IndexedSlices | TensorCompatible | None
    # A number, or a tensor of one.
    Number = tf.Tensor | float

# A gradient of a variable: of all of it, or of some of its rows.
Gradient = tf.Tensor | tf.IndexedSlices
# A leaf of a batch that may have rows.
BatchLeaf = tf.Tensor | tf.SparseTensor | tf.RaggedTensor
# Any nested structure, which comes back in the same form.
Tree = TypeVar("Tree")
# A step of a model on the rows of a batch.
BatchStep = Callable[[object], object]
