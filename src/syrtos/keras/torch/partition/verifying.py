"""`syrtos verify` on torch: one process too computes a function's first step, and both are compared.

The step is computed on the whole batch, and by all workers together, from the same state. What
differs is rounding, or a defect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import keras
import numpy as np
import torch

from syrtos.comm.arrays import Array, ReduceOp
from syrtos.comm.communicator import Communicator
from syrtos.comm.world import Session
from syrtos.keras.replica import state
from syrtos.keras.split import comparison, noted_gradients
from syrtos.keras.split.comparison import Row
from syrtos.keras.split.verdicts import Verifying
from syrtos.keras.torch import generators, ops, torch_internals
from syrtos.keras.torch.partition.placed import PlacedTensor

if TYPE_CHECKING:
    from syrtos.keras.protocols import NamedVariable


@dataclasses.dataclass
class _Computed:
    """The outputs of a step, the gradients that optimizers got, and the state after it."""

    outputs: object
    gradients: list[tuple[str, Array]]
    state: Sequence[Array]


def verify_step(
    model: keras.Model,
    session: Session,
    name: str,
    one: Callable[[], object],
    together: Callable[[], tuple[object, str]],
) -> None:
    """Computes a step both ways, without an effect on the model, and notes all differences.

    All workers call this together.

    Args:
        model: whose step it is.
        session: the workers.
        name: the name of the step.
        one: computes it on the whole batch.
        together: computes it as all workers do; returns its outputs, and the operations that every
            worker computed whole.
    """
    kept = _StateOfModel(model)
    gathered = ""

    def together_alone() -> object:
        nonlocal gathered
        outputs, gathered = together()
        return outputs

    before = kept.read()
    computed = [kept.computing(step) for step in (one, together_alone)]
    rows = list(_compare(session.comm, kept.names_of_compared(), name, before, *computed))
    bound = comparison.bound_of(comparison.precision_of(cast("Any", model)))
    Verifying.note(rows, session, model.name, name, bound, gathered=gathered)


@dataclasses.dataclass
class _Update:
    """The gradients of an update.

    Attributes:
        titles: the names of the variables that have gradients.
        gradients: theirs, after the exchange.
    """

    titles: list[str]
    gradients: list[torch.Tensor] = dataclasses.field(default_factory=list)

    def pairs(self) -> list[tuple[str, torch.Tensor]]:
        """Returns each gradient with its name; numbers where Keras has left some out."""
        if len(self.titles) == len(self.gradients):
            return list(zip(self.titles, self.gradients, strict=True))
        return [(f"gradient {n}", gradient) for n, gradient in enumerate(self.gradients, 1)]


class _StateOfModel:
    """The variables, buffers and gradients of a model, and torch's generators.

    Variables that follow from gradients, which are compared themselves, are not compared: an
    optimizer may enlarge the rounding of a gradient near zero.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        named = {id(_tensor(v)): (state.name_of(v), _tensor(v)) for v in _variables_of(model)}
        for title, tensor in [*model.named_parameters(), *torch_internals.named_buffers(model)]:
            named.setdefault(id(tensor), (title, tensor))
        self._names = [title for title, _ in named.values()]
        self._tensors = [tensor for _, tensor in named.values()]
        self._following: set[int] = set()

    def names_of_compared(self) -> list[str]:
        """Returns the names of what `read` returns; empty ones of what is not compared."""
        pairs = zip(self._names, self._tensors, strict=True)
        return ["" if id(tensor) in self._following else title for title, tensor in pairs]

    def read(self) -> list[Array]:
        """Returns copies of all values."""
        return [_wide(tensor) for tensor in self._tensors]

    def computing(self, step: Callable[[], object]) -> _Computed:
        """Computes a step, and restores what it has changed."""
        values = [tensor.detach().clone() for tensor in self._tensors]
        grads = [(p, p.grad) for p in self._model.parameters()]
        generator, attributes = generators.generator_state(), _Attributes(self._model)
        updates: list[_Update] = []

        def note(optimizer: Any, given: Sequence[Any], variables: Sequence[NamedVariable]) -> None:
            following = [*variables, *state.variables_of(optimizer)]
            self._following |= {id(_tensor(variable)) for variable in following}
            titles = [*map(state.name_of, variables)]
            titles += [f"gradient {index + 1}" for index in range(len(titles), len(given))]
            pairs = zip(titles, given, strict=False)
            updates.append(_Update([title for title, made in pairs if made is not None]))

        def note_reduced(gradients: Sequence[torch.Tensor]) -> None:
            updates[-1].gradients = updates[-1].gradients or list(gradients)

        with (
            noted_gradients.noting_gradients(note, updates=True),
            noted_gradients.noting_reduced(note_reduced),
        ):
            outputs = step()
        found = [pair for update in updates for pair in update.pairs()]
        if not updates:  # an optimizer of torch's own takes what `backward` has left
            titles = dict(zip(map(id, self._tensors), self._names, strict=True))
            left = [p for p, old in grads if p.grad is not None and p.grad is not old]
            found = [(titles[id(p)], p.grad) for p in left if p.grad is not None]
            self._following |= set(map(id, left))
        after = self.read()
        noted = [(title, _wide(gradient)) for title, gradient in found]
        with torch.no_grad():
            for tensor, value in zip(self._tensors, values, strict=True):
                tensor.copy_(value)
            for parameter, grad in grads:
                parameter.grad = grad
        generators.set_generator_state(generator)
        attributes.restore()
        return _Computed(outputs, noted, after)


class _Attributes:
    """The attributes of a model and its layers, and the lists and dictionaries among them."""

    def __init__(self, model: keras.Model) -> None:
        owners = {id(owner): owner for owner in [model, *torch_internals.layers_of(model)]}
        self._kept = [(owner.__dict__, dict(owner.__dict__)) for owner in owners.values()]
        held = [value for _, kept in self._kept for value in kept.values()]
        self._lists = [(value, list(value)) for value in held if type(value) is list]
        self._mappings = [(value, dict(value)) for value in held if type(value) is dict]

    def restore(self) -> None:
        """Puts them back."""
        for mapping, kept in [*self._kept, *self._mappings]:
            mapping.clear()
            mapping.update(kept)
        for value, kept in self._lists:
            value[:] = kept


def _variables_of(model: keras.Model) -> list[Any]:
    return [*state.of_model(cast("Any", model)), *state.of_metrics(cast("Any", model))]


def _tensor(variable: Any) -> torch.Tensor:
    return variable if isinstance(variable, torch.Tensor) else variable._value


def _wide(tensor: torch.Tensor) -> Array:
    whole = tensor.whole() if isinstance(tensor, PlacedTensor) else tensor
    return np.array(ops.array_of(whole.detach().to_dense())).astype(np.float64)


def _compare(
    comm: Communicator,
    names: Sequence[str],
    step: str,
    before: Sequence[Array],
    one: _Computed,
    together: _Computed,
) -> Iterator[Row]:
    """Yields a row for each gradient, number or output, and changed variable."""
    for row in _rows(names, step, before, one, together):
        # What one worker alone has computed otherwise is different too.
        worst = comm.allreduce(np.asarray(row.difference, np.float64), ReduceOp.MAX)
        yield dataclasses.replace(row, difference=float(worst))


def _rows(
    names: Sequence[str], step: str, before: Sequence[Array], one: _Computed, together: _Computed
) -> Iterator[Row]:
    given = [[gradient for _, gradient in each.gradients] for each in (one, together)]
    yield from comparison.compare_gradients([title for title, _ in one.gradients], *given)
    numbers = [_numbers(each.outputs) for each in (one, together)]
    kind = "output" if step == "predict_step" else "log"
    titles = comparison.names_of(one.outputs, numbers[0])
    for title, a, b in zip(titles, *numbers, strict=True):
        yield comparison.compare_values(kind, title, _array(a), _array(b))
    for title, start, a, b in zip(names, before, one.state, together.state, strict=True):
        if title and not (
            np.array_equal(start, a, equal_nan=True) and np.array_equal(start, b, equal_nan=True)
        ):
            yield comparison.compare_values("variable", title, a, b, start)


def _numbers(outputs: object) -> list[Any]:
    return [leaf for leaf in torch_internals.tree_leaves(outputs) if _is_number(leaf)]


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor | float | int | np.ndarray | np.generic)


def _array(leaf: Any) -> Array:
    return _wide(leaf) if isinstance(leaf, torch.Tensor) else np.asarray(leaf, np.float64)
