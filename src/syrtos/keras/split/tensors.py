"""Tensors and modules of the frameworks that a script holds: their sizes, values and states.

The frameworks are told by the names of classes, since none of them may be installed.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, Self, TypeGuard, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from syrtos.keras.protocols import Shape


class Tensor(Protocol):
    """An array or tensor: of NumPy, TensorFlow, torch or JAX."""

    @property
    def dtype(self) -> object:
        """The framework's own dtype."""
        ...

    @property
    def shape(self) -> Shape:
        """Its sizes; of a tensor of rows in a graph the first may be unknown."""
        ...


class EagerTensor(Tensor, Protocol):
    """A tensor with a value: an `EagerTensor` of TensorFlow, or a tensor of torch."""

    def numpy(self) -> npt.NDArray[np.generic]:
        """Returns the value; torch gives that of the host's memory alone."""
        ...


class TorchTensor(EagerTensor, Protocol):
    """A tensor or parameter of torch."""

    grad: Self | None

    @property
    def is_leaf(self) -> bool:
        """True if no operation has made it; only leaves keep gradients."""
        ...

    def clone(self) -> Self:
        """Returns a copy."""
        ...

    def copy_(self, other: Self, /) -> object:
        """Takes the values of another tensor."""
        ...

    def cpu(self) -> Self:
        """Returns it in the host's memory."""
        ...

    def detach(self) -> Self:
        """Returns the same memory, without the operations that have made it."""
        ...

    def double(self) -> Self:
        """Returns it in float64."""
        ...


class HoldsState(Protocol):
    """An optimizer or schedule of torch, a `GradScaler`, or a module."""

    def load_state_dict(self, state: Mapping[str, object], /) -> object:
        """Gives it a state."""
        ...

    def state_dict(self) -> Mapping[str, object]:
        """Returns its state, whose tensors are its own."""
        ...


class _Module(Protocol):
    """A module of torch."""

    def buffers(self) -> Iterable[TorchTensor]: ...

    def parameters(self) -> Iterable[TorchTensor]: ...


class _Generator(Protocol):
    """A generator of random numbers of torch."""

    def get_state(self) -> object: ...

    def set_state(self, state: object, /) -> object: ...


class _DType(Protocol):
    """A dtype of TensorFlow."""

    @property
    def size(self) -> int: ...


# The packages and names of classes. A script may have parameters outside of its model, such as
# those of a loss with an optimizer of its own, and steps change these too.
_CLASSES = frozenset({("torch", "Tensor"), ("torch", "Parameter"), ("tensorflow", "EagerTensor")})


def is_tensor(value: object) -> TypeGuard[EagerTensor]:
    """Returns whether a value is a torch tensor or parameter, or an eager tensor of TensorFlow.

    Variables of TensorFlow do not count.
    """
    return (type(value).__module__.partition(".")[0], type(value).__name__) in _CLASSES


def is_torch_tensor(value: object) -> TypeGuard[TorchTensor]:
    """Returns whether a value is a tensor or a parameter of torch."""
    return is_tensor(value) and hasattr(value, "detach")


def has_dtype(value: object) -> TypeGuard[Tensor]:
    """Returns whether a value is an array or a tensor, by its having a dtype."""
    return getattr(value, "dtype", None) is not None


def has_state_dict(value: object) -> TypeGuard[HoldsState]:
    """Returns whether a value gives and takes its state as torch's objects do."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def array_of(tensor: EagerTensor) -> npt.NDArray[np.generic]:
    """Returns a tensor's value in host memory: float64 for torch, its own dtype for TensorFlow."""
    # NumPy has no bfloat16, in which torch's tensors may be.
    return tensor.detach().cpu().double().numpy() if is_torch_tensor(tensor) else tensor.numpy()


def elements_of(value: object) -> int:
    """Returns the number of elements of an array or tensor; 1 for anything without a shape."""
    return int(np.prod(getattr(value, "shape", ())))


def bytes_of(value: Tensor) -> int:
    """Returns the bytes of an array or tensor, whose shape must be known."""
    # NumPy and torch say `itemsize`, TensorFlow `size`.
    return elements_of(value) * int(
        getattr(value.dtype, "itemsize", None) or cast("_DType", value.dtype).size
    )


def tensors_of(module: object) -> list[TorchTensor]:
    """Returns the parameters and buffers of a module of torch; none of anything else."""
    if not _is_module(module):
        return []
    return [*module.parameters(), *module.buffers()]


def restorer_of(value: object) -> Callable[[], object] | None:
    """Returns a function that gives a random generator, or a torch tensor, its present state back.

    None for any other value.
    """
    if isinstance(value, random.Random):
        return functools.partial(value.setstate, value.getstate())
    if isinstance(value, np.random.RandomState):
        return functools.partial(value.set_state, value.get_state())
    if _is_torch_generator(value):
        return functools.partial(value.set_state, value.get_state())
    if isinstance(value, np.random.Generator):
        return functools.partial(
            setattr, value.bit_generator, "state", copy.deepcopy(value.bit_generator.state)
        )
    return _restorer_of_tensor(value) if is_torch_tensor(value) else None


def _restorer_of_tensor(tensor: TorchTensor) -> Callable[[], None]:
    """Returns a function that gives a tensor its value, and a leaf its gradient too."""
    # torch warns where the gradient of a tensor is read that is no leaf.
    before, gradient = tensor.detach().clone(), tensor.grad if tensor.is_leaf else None
    values = None if gradient is None else gradient.detach().clone()

    def undo() -> None:
        # In place, since optimizers and views hold the same tensor; detached, since torch refuses
        # to write to a parameter that needs a gradient.
        tensor.detach().copy_(before)
        if tensor.is_leaf:
            tensor.grad = gradient
            if gradient is not None and values is not None:
                gradient.detach().copy_(values)

    return undo


def _is_module(value: object) -> TypeGuard[_Module]:
    return hasattr(value, "parameters") and hasattr(value, "buffers")


def _is_torch_generator(value: object) -> TypeGuard[_Generator]:
    return type(value).__module__.startswith("torch") and type(value).__name__ == "Generator"
