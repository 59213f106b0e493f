"""The members of optimizers, models and tensors that dialects use, of Keras 2, Keras 3 or neither.

Keras 2 and Keras 3 have no class in common, and TensorFlow's stubs lack `tf.compat.v1`. Where a
comment says "of Keras 2" or "of Keras 3", objects of the other version lack the member: the code
asks by `hasattr` first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from syrtos.keras import protocols as keras_protocols

if TYPE_CHECKING:
    import tensorflow as tf

    from syrtos.keras.tensorflow.types import Gradient

# A variable of the model has no gradient where the loss does not depend on it.
GradientAndVariable: TypeAlias = "tuple[Gradient | None, DialectVariable]"
# A loss that a tape has recorded, or a function that computes it.
Loss: TypeAlias = "tf.Tensor | Callable[[], tf.Tensor]"


class DialectVariable(keras_protocols.Variable, Protocol):
    """A variable of TensorFlow, of Keras 2 or of Keras 3."""

    def __mul__(self, factor: float, /) -> Any:
        """Returns the product with a number."""
        ...


class DialectOptimizer(keras_protocols.Optimizer, Protocol):
    """An optimizer of Keras, as old APIs use it."""

    gradient_accumulation_steps: int | None  # of Keras 3
    register_local_var: Callable[
        [DialectVariable], None
    ]  # of an optimizer that Horovod's dialect has made distributed

    def minimize(
        self, loss: Loss, var_list: Sequence[DialectVariable], *args: object, **kwargs: object
    ) -> object:
        """Computes gradients, and makes an update.

        It is of Keras 2, and of Keras 3 by `syrtos.dialects.keras2`.
        """
        ...

    def _compute_gradients(
        self, loss: Loss, var_list: Sequence[DialectVariable]
    ) -> Iterable[GradientAndVariable]:
        """Computes gradients; of old Keras 2."""
        ...

    def apply_gradients(self, grads_and_vars: Iterable[GradientAndVariable]) -> object:
        """Makes an update."""
        ...

    def get_slot_names(self) -> Sequence[str]:
        """Returns the kinds of the optimizer's variables; of old Keras 2."""
        ...

    def get_slot(self, var: DialectVariable, slot_name: str) -> DialectVariable:
        """Returns the optimizer's variable of a kind for a model's variable; of old Keras 2."""
        ...


class DialectModel(Protocol):
    """A model of Keras that has its weights."""

    @property
    def trainable_variables(self) -> Sequence[DialectVariable]:
        """The variables that training changes."""
        ...

    @property
    def variables(self) -> Sequence[DialectVariable]:
        """The variables that training changes, and others."""
        ...


class DialectLayer(Protocol):
    """A layer of Keras."""

    @property
    def trainable_weights(self) -> Sequence[DialectVariable]:
        """The variables that training changes."""
        ...
