"""A step of `fit`, `evaluate` or `predict` on this worker's share of the global batch.

After every step all variables are equal on all workers, by the rules of
`syrtos.keras.tensorflow.step`. A step notes what it assigns, and makes equal what metrics add up
(their changes are summed), and other floating variables and buffers of torch modules (their mean by
samples).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Self, TypeGuard, TypeVar, overload

import keras
import numpy as np
import numpy.typing as npt
import torch

from syrtos.comm.world import Session
from syrtos.keras.features import registry
from syrtos.keras.split import verdicts
from syrtos.keras.split.shares import Assignments
from syrtos.keras.torch import generators, torch_internals
from syrtos.keras.torch.overlap import Overlap
from syrtos.scopes import set_within

if TYPE_CHECKING:
    from syrtos.keras.protocols import Optimizer

# Leaves in tuples, lists and dictionaries, which come back in the same form.
_Tree = TypeVar("_Tree")
_step: ContextVar[TorchStep | None] = ContextVar("step", default=None)
_whole: ContextVar[bool] = ContextVar("whole", default=False)
# A number, or a tensor of numbers, that a step returns.
Number = torch.Tensor | npt.NDArray[np.generic] | np.generic | float | int
_Floats = npt.NDArray[np.float64] | np.float64


def current_step() -> TorchStep | None:
    """Returns the step that this thread is in, shared with others."""
    return _step.get()


def is_whole() -> bool:
    """Returns whether this thread computes the whole batch, as every other worker does.

    See `as_one_process`.
    """
    return _whole.get()


@contextlib.contextmanager
def as_one_process() -> Iterator[None]:
    """Makes code mean what it means in one process, within the context.

    There is no step on a share, and nothing is noted.
    """
    with set_within(_step, None), set_within(_whole, True):
        yield


def as_several_workers() -> contextlib.AbstractContextManager[bool]:
    """Context manager within `as_one_process`: the workers split what is computed again."""
    return set_within(_whole, False)


class TorchStep(Assignments):
    """The state of a step.

    Attributes:
        session: the workers.
        samples: the number of samples in this worker's share. If it is 0, the step computes with a
            row that does not count.
        training: whether it is a step of `fit`.
        reduces_early: whether gradients are reduced where they are made, by `backward`, for code
            that looks at them; else where an optimizer of Keras's own takes them.
        model: the model whose step it is.
        overlap: the optimizer whose gradients are on their way already, and these, in a step of
            Keras's own.
    """

    overlap: tuple[Optimizer, Overlap] | None = None
    model: keras.Model | None = None

    def parameters(self) -> list[torch.Tensor]:
        """Returns the parameters of the step's model, and of torch modules and models inside it."""
        return [] if self.model is None else list(self.model.parameters())

    def __init__(
        self,
        session: Session,
        samples: int,
        training: bool,
        reduces_early: bool = False,
    ) -> None:
        """
        Args:
            session: the workers.
            samples: see above.
            training: see above.
            reduces_early: see above.
        """
        super().__init__()
        self.session = session
        self.samples = samples
        self.training = training
        self.reduces_early = reduces_early
        self._total: float | None = None
        self._bounds: tuple[int, int, int] | None = None
        self._sum_factor = registry.sum_factor(training)

    @contextlib.contextmanager
    def as_current_step(self) -> Iterator[Self]:
        """Makes this the current step."""
        with set_within(_step, self):
            if self.splits_batch:
                yield self  # what is drawn for rows is drawn for all rows: see `draws`
                return
            with generators.own_random_numbers(self.rank_to_seed()):
                yield self

    def rank_to_seed(self) -> int:
        """Returns a number by which the workers' random numbers differ, as their rows do.

        It is 0 outside of training for a model without weights yet, which are drawn alike on all
        workers: only training makes them equal afterwards.
        """
        is_built = self.model is not None and self.model.built
        by_rank = (self.training or is_built) and not self.draws_alike and not self.splits_batch
        return self.session.world.rank if by_rank else 0

    def bounds(self) -> tuple[int, int, int]:
        """Returns the first of this worker's rows, their number, and that of all workers' rows.

        All workers call this together, once in a step at most they exchange something.
        """
        if self._bounds is None:
            counts = self.session.comm.agree("rows of each worker", float(self.samples))
            start = int(sum(counts[: self.session.comm.rank]))
            self._bounds = start, self.samples, int(sum(counts))
        return self._bounds

    # -- numbers of the global batch ---------------------------------------------------------------

    def fraction(self) -> float:
        """Returns this worker's part of the step's samples; 1 where it has none, to divide by."""
        # Once in a step: the workers exchange it.
        if self._total is None:
            self._total = self._sum("samples of the step", self.samples)
        return self.samples / self._total if self.samples else 1.0

    def weight_of(self, values: object) -> float | None:
        """Returns `fraction` where ``values`` is one number; None where it has rows."""
        number = isinstance(values, int | float) or len(getattr(values, "shape", (1,))) == 0
        return self.fraction() if number else None

    def fraction_like(self, values: torch.Tensor) -> torch.Tensor:
        """Returns `fraction` as a tensor, of the dtype and on the device of ``values``."""
        return torch.as_tensor(self.fraction(), dtype=values.dtype, device=values.device)

    def total_like(self, values: torch.Tensor) -> torch.Tensor:
        """Returns the sum of all elements of all workers that have samples, without a gradient."""
        total = self._sum(
            "total of the step", float(values.detach().sum()) if self.samples else 0.0
        )
        return torch.as_tensor(total, dtype=values.dtype, device=values.device)

    def mask_factor(self, mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Returns the factor between mask weights normalized in the share and the global batch."""
        valid = float(mask.sum())
        elements = float(mask.numel())
        everywhere = self._sum("masked elements of the step", elements if self.samples else 0.0)
        valid_everywhere = self._sum(
            "unmasked elements of the step", valid if self.samples else 0.0
        )
        factor = everywhere / max(valid_everywhere, 1.0) * (valid / elements if elements else 0.0)
        return torch.as_tensor(factor, dtype=like.dtype, device=like.device)

    @property
    def splits_batch(self) -> bool:
        """Returns whether this worker has a part of a batch, and not one of its own."""
        return verdicts.is_split(self.session)

    def _sum(self, name: str, value: float) -> float:
        with self.session.ledger.span("exchange"):
            return sum(self.session.comm.agree(name, float(value))) * self._sum_factor

    # -- called by the variables -------------------------------------------------------------------

    def before_assign(self, variable: keras.Variable) -> None:
        """Notes the value from before the first assignment."""
        # Variables that are trained get equal updates: their gradients are exchanged.
        if not self._paused and not variable.trainable and id(variable) not in self._dirty:
            self._dirty[id(variable)] = (variable, variable._value.detach().clone())

    def before_read(self, variable: keras.Variable) -> None:
        """Makes a metric's state global before it is read again."""
        if not self._paused and id(variable) in self._dirty and _is_sum(variable):
            self.flush()

    # -- making state equal ------------------------------------------------------------------------

    def finish(
        self, outputs: object, logs_are_global: bool, buffers: Sequence[torch.Tensor] = ()
    ) -> object:
        """Makes the rest of the state equal and, unless they are global already, the logs.

        Floating scalars among the outputs of a `train_step` of the script's own, which workers
        compute by themselves, become their mean by samples, and ``buffers`` their mean.
        """
        numbers = [] if logs_are_global else [n for n in numbers_of(outputs) if _is_log(n)]
        means = self.flush(buffers, numbers)
        replace = (
            {id(number): mean for number, mean in zip(numbers, means, strict=True)}
            if numbers
            else {}
        )
        return (
            keras.tree.map_structure(lambda leaf: replace.get(id(leaf), leaf), outputs)
            if replace
            else outputs
        )

    def flush(
        self, buffers: Sequence[torch.Tensor] = (), scalars: Sequence[Number] = ()
    ) -> list[Number]:
        """Makes all noted variables and ``buffers`` equal in one exchange.

        Returns the means by samples of ``scalars``.
        """
        dirty, self._dirty = self._dirty, {}
        sums = [(variable._value, base) for variable, base in dirty.values() if _is_sum(variable)]
        means = [
            (variable._value, base)
            for variable, base in dirty.values()
            if not _is_sum(variable) and variable._value.is_floating_point()
        ]
        means += [(buffer, buffer.clone()) for buffer in buffers]
        if not (sums or means or scalars):
            return []
        # Each worker's metric goes on from the same value: only what it has added since is summed.
        changes = [_wide(value) - _wide(base) for value, base in sums]
        weighted = [_wide(value) * self.samples for value in [*(v for v, _ in means), *scalars]]
        total, *added = self._sum_over_workers(
            [np.asarray(float(self.samples)), *changes, *weighted]
        )
        averages = [part / max(float(total), 1.0) for part in added[len(sums) :]]
        with torch.no_grad():
            for (value, base), change in zip(sums, added, strict=False):
                value.copy_(torch.as_tensor(_wide(base) + change))
            for (value, base), average in zip(means, averages, strict=False):
                value.copy_(torch.as_tensor(average) if total > 0 else base)
        return [
            _like(scalar, mean)
            for scalar, mean in zip(scalars, averages[len(means) :], strict=True)
        ]

    def _sum_over_workers(self, parts: Sequence[_Floats]) -> list[_Floats]:
        """Returns the sums of parts, which count as zeros on a worker without samples."""
        if not self.samples:
            # Whatever the row that does not count has given.
            parts = [np.zeros_like(part) for part in parts]
        # One vector of float64 takes one exchange, and holds counters and float32 states exactly.
        shapes = [np.shape(part) for part in parts]
        vector = np.concatenate([np.reshape(part, -1) for part in parts])
        with self.session.ledger.span("exchange"):
            vector = self.session.comm.allreduce(vector)
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        return [
            part.reshape(shape) for part, shape in zip(np.split(vector, ends), shapes, strict=True)
        ]


@overload
def _wide(value: torch.Tensor) -> npt.NDArray[np.float64]: ...
@overload
def _wide(value: Number) -> _Floats: ...
def _wide(value: Number) -> _Floats:
    """Returns a value as float64 in the host's memory."""
    return (
        value.detach().to("cpu", torch.float64).numpy()
        if isinstance(value, torch.Tensor)
        else np.float64(value)
    )


def _like(scalar: Number, mean: Number) -> Number:
    if isinstance(scalar, torch.Tensor):
        return torch.as_tensor(float(mean), device=scalar.device).to(scalar.dtype)
    return type(scalar)(mean) if isinstance(scalar, np.generic | int) else float(mean)


def _is_log(leaf: Number) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.ndim == 0 and leaf.is_floating_point()
    return isinstance(leaf, float) or (np.ndim(leaf) == 0 and np.asarray(leaf).dtype.kind == "f")


def _is_sum(variable: keras.Variable) -> bool:
    return variable.aggregation == "sum"


def numbers_of(outputs: object) -> list[Number]:
    """Returns the numbers, and tensors of numbers, among what a step returns, in order."""
    return [leaf for leaf in keras.tree.flatten(outputs) if _is_number(leaf)]


def _is_number(leaf: object) -> TypeGuard[Number]:
    if isinstance(leaf, torch.Tensor):
        return True
    return isinstance(leaf, float | int | np.generic) or (
        isinstance(leaf, np.ndarray) and leaf.ndim == 0
    )


class Buffer:
    """A buffer of a torch module inside of a model, in the form of a variable of Keras.

    Such are e.g. the moving statistics of a `torch.nn.BatchNorm2d`.
    """

    trainable = False

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.path = self.name = name
        self._value = tensor
        self.shape, self.dtype = tuple(tensor.shape), keras.backend.standardize_dtype(tensor.dtype)

    def assign(self, value: npt.ArrayLike | torch.Tensor) -> None:
        """Writes to the buffer."""
        with torch.no_grad():
            self._value.copy_(torch.as_tensor(value))


def buffers_of(model: keras.Model) -> list[Buffer]:
    """Returns the buffers of torch modules inside of a model: Keras has no variables of them."""
    return [Buffer(name, tensor) for name, tensor in torch_internals.named_buffers(model)]


def floating_buffers_of(model: keras.Model) -> list[torch.Tensor]:
    """Returns the buffers that become the mean by samples: all floating ones, changed or not."""
    # torch's kernels don't count what they write to (`_version`).
    return [
        tensor for _, tensor in torch_internals.named_buffers(model) if tensor.is_floating_point()
    ]
