"""A step of `fit`, `evaluate` or `predict` on this worker's share of the global batch.

After every step all variables are equal on all workers, by the rules of
`syrtos.keras.tensorflow.step`. A step notes what it assigns, and makes equal what metrics add up
(their changes are summed), and other floating variables and buffers of torch modules (their mean by
samples).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Self, TypeGuard, TypeVar, cast, overload

import keras
import numpy as np
import numpy.typing as npt
import torch

from syrtos.comm.world import Session
from syrtos.keras.features import registry
from syrtos.keras.split import trial_step, verdicts
from syrtos.keras.split.plan import Rule, SplitPlan
from syrtos.keras.split.shares import Assignments
from syrtos.keras.split.trial_step import StepOutcome
from syrtos.keras.torch import gathering, generators, torch_internals
from syrtos.keras.torch.overlap import Overlap
from syrtos.scopes import set_within

if TYPE_CHECKING:
    from syrtos.keras.protocols import Optimizer

# Leaves in tuples, lists and dictionaries, which come back in the same form.
_Tree = TypeVar("_Tree")
_step: ContextVar[TorchStep | None] = ContextVar("step", default=None)
_whole: ContextVar[bool] = ContextVar("whole", default=False)
_note: ContextVar[Callable[[keras.Variable], None] | None] = ContextVar("note", default=None)
# A number, or a tensor of numbers, that a step returns.
Number = torch.Tensor | npt.NDArray[np.generic] | np.generic | float | int
_Floats = npt.NDArray[np.float64] | np.float64
_EXTREMES: tuple[Rule, ...] = ("max", "min")
# The dtypes in which numbers of a step are compared, by NumPy's kinds; that of other kinds is
# float64.
_COMPARED_AS: Mapping[str, type[np.generic]] = {
    "f": np.float64,
    "i": np.int64,
    "u": np.int64,
    "b": np.bool_,
}


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


@contextlib.contextmanager
def noting_assignments(note: Callable[[keras.Variable], None]) -> Iterator[None]:
    """Calls ``note``, within the context, with each Keras variable that is about to be assigned."""
    with set_within(_note, note):
        yield


def assigning(variable: keras.Variable) -> None:
    """Tells `noting_assignments` that a Keras variable is about to be assigned."""
    note = _note.get()
    if note:
        note(variable)


class TorchStep(Assignments):
    """The state of a step.

    Attributes:
        session: the workers.
        samples: the number of samples in this worker's share. If it is 0, the step computes with a
            row that does not count.
        training: whether it is a step of `fit`.
        reduces_early: whether gradients are reduced where they are made, by `backward`, for code
            that looks at them; else where an optimizer of Keras's own takes them.
        plan: the way such steps are split, as the first batch has shown.
        outcome: takes what this worker itself has computed, if this is a trial on the first batch
            that does not count.
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
        plan: SplitPlan | None = None,
        outcome: StepOutcome | None = None,
    ) -> None:
        """
        Args:
            session: the workers.
            samples: see above.
            training: see above.
            reduces_early: see above; the plan may overrule it.
            plan: see above.
            outcome: see above.
        """
        super().__init__()
        self.session = session
        self.samples = samples
        self.training = training
        self.plan = plan or SplitPlan()
        self.reduces_early = self.plan.reduces_where_made(reduces_early)
        self.outcome = outcome
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

    def draws_once(self, shape: object) -> bool:
        """Returns whether a random draw is made once for the batch: see `Step.draws_once`."""
        del shape
        return self._paused

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

    def as_one_process(self) -> contextlib.AbstractContextManager[None]:
        """Context manager: code inside computes the whole batch; see the function `as_one_process`."""
        return as_one_process()

    def rows_of_all(self, tree: _Tree) -> _Tree:
        """Returns the structure with the rows of all workers: see `syrtos.keras.backend.Step`."""
        return gathering.rows_of_all(self, tree)

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

        Floating scalars among the outputs of a custom `train_step` become their mean by samples, or
        what the plan says, and ``buffers`` their mean.
        """
        numbers = [] if logs_are_global or self.plan.reason_not_split else numbers_of(outputs)
        if self.outcome is not None:
            self.outcome.own_logs = [number_as_array(number) for number in numbers]
        buffers = () if self.plan.reason_not_split else buffers
        replace = self.plan.combine_logs(
            numbers, _is_log, lambda means: self.flush(buffers, means), self._combine
        )
        return (
            keras.tree.map_structure(lambda leaf: replace.get(id(leaf), leaf), outputs)
            if replace
            else outputs
        )

    def _combine(self, number: Number, rule: Rule) -> Number:
        """Returns the sum, maximum or minimum over the workers that have samples."""
        # Among the numbers of a step only tensors have dimensions: see `_is_number`.
        if isinstance(number, torch.Tensor) and number.ndim:
            return self._combine_tensors(number, rule)
        if rule == "sum":
            return _like(
                number,
                self._sum("numbers that a step returns", float(number) if self.samples else 0.0),
            )
        # What a worker without samples gives must not win.
        worst = -np.inf if rule == "max" else np.inf
        values = self.session.comm.agree(
            "numbers that a step returns", float(number) if self.samples else worst
        )
        return _like(number, max(values) if rule == "max" else min(values))

    def _combine_tensors(self, tensor: torch.Tensor, rule: Rule) -> torch.Tensor:
        other = {"sum": 0.0, "max": -np.inf, "min": np.inf}[rule]
        mine = _wide(tensor) if self.samples else np.full(tuple(tensor.shape), other)
        rows = self.session.comm.allgather(np.asarray(mine)[np.newaxis])
        found = {"sum": np.sum, "max": np.max, "min": np.min}[rule](rows, axis=0)
        return torch.as_tensor(found, device=tensor.device).to(tensor.dtype)

    def _rule_of(self, variable: keras.Variable) -> Rule:
        """Returns the rule by which the workers' values of a variable become one."""
        if known := self.plan.variables.get(id(variable)):
            return known
        return (
            "sum"
            if _is_sum(variable)
            else "mean"
            if variable._value.is_floating_point()
            else "equal"
        )

    def flush(
        self, buffers: Sequence[torch.Tensor] = (), scalars: Sequence[Number] = ()
    ) -> list[Number]:
        """Makes all noted variables and ``buffers`` equal in one exchange.

        Returns the means by samples of ``scalars``.
        """
        dirty, self._dirty = self._dirty, {}
        by_rule: dict[Rule, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for variable, base in dirty.values():
            self._warn_if_unproven(variable)
            value: torch.Tensor = variable._value
            if self.outcome is not None:
                self.outcome.own[id(variable)] = _wide(value).copy()
            by_rule.setdefault(self._rule_of(variable), []).append((value, base))
        sums = by_rule.get("sum", [])
        means = [*by_rule.get("mean", []), *((buffer, buffer.clone()) for buffer in buffers)]
        extremes = [
            (value, base, rule) for rule in _EXTREMES for value, base in by_rule.get(rule, [])
        ]
        if not (sums or means or extremes or scalars):
            return []
        # Each worker's metric goes on from the same value: only what it has added since is summed.
        changes = [_wide(value) - _wide(base) for value, base in sums]
        weighted = [
            _wide(value) * self.samples for value in [*(value for value, _ in means), *scalars]
        ]
        rows = [_wide(value if self.samples else base) for value, base, _ in extremes]
        rows = [
            trial_step.in_own_row(row, self.session.comm.rank, self.session.comm.size)
            for row in rows
        ]
        total, *added = self._sum_over_workers(
            [np.asarray(float(self.samples)), *changes, *weighted], rows
        )
        averages = [
            part / max(float(total), 1.0) for part in added[len(sums) : len(sums) + len(weighted)]
        ]
        with torch.no_grad():
            for (value, base), change in zip(sums, added, strict=False):
                value.copy_(torch.as_tensor(_wide(base) + change))
            for (value, base), average in zip(means, averages, strict=False):
                value.copy_(torch.as_tensor(average) if total > 0 else base)
            for (value, _, rule), found in zip(
                extremes, added[len(sums) + len(weighted) :], strict=True
            ):
                value.copy_(
                    torch.as_tensor(found.max(axis=0) if rule == "max" else found.min(axis=0))
                )
        return [
            _like(scalar, mean)
            for scalar, mean in zip(scalars, averages[len(means) :], strict=True)
        ]

    def _warn_if_unproven(self, variable: keras.Variable) -> None:
        """Says once that a variable is assigned which no comparison has met."""
        # It is not an error: the step has computed with parts of the rows, and can't be computed
        # otherwise any more.
        if (
            self.outcome is not None
            or self.plan.reason_not_split
            or _is_sum(variable)
            or self.plan.knows_rule(id(variable))
        ):
            return
        self.plan.compared_variables.add(id(variable))
        if self.session.world.rank == 0 and self.splits_batch:
            print(
                f"syrtos: `{variable.path}` is assigned in some steps alone, and no comparison of"
                " rows has shown what becomes of it: it is the"
                f" {'mean over' if variable._value.is_floating_point() else 'value of each of'} the"
                " workers from now on, which may differ from one process.",
                file=sys.stderr,
            )

    def _sum_over_workers(
        self, parts: Sequence[_Floats], of_all: Sequence[_Floats]
    ) -> list[_Floats]:
        """Returns the sums of all parts over the workers.

        ``parts`` count as zeros on a worker without samples.
        """
        if not self.samples:
            # Whatever the row that does not count has given.
            parts = [np.zeros_like(part) for part in parts]
        # One vector of float64 takes one exchange, and holds counters and float32 states exactly.
        parts = [*parts, *of_all]
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


def number_as_array(leaf: Number) -> npt.NDArray[np.generic]:
    """Returns a step's number as float64, a whole number as int64, and a truth value as bool."""
    if isinstance(leaf, torch.Tensor):
        # NumPy has no bfloat16.
        leaf = (
            leaf.detach()
            .to("cpu", torch.float64 if leaf.is_floating_point() else leaf.dtype)
            .numpy()
        )
    value = np.asarray(leaf)
    return value.astype(_COMPARED_AS.get(value.dtype.kind, np.float64))


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
