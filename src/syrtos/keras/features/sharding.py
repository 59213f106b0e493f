"""`--shard-update`: each worker updates its own part of each variable.

A worker keeps the optimizer's state of its part. This is the first stage of ZeRO (Rajbhandari et
al. 2020, arXiv:1910.02054, section 5.1): gradients are summed as without it, each worker updates
its part of the weights alone, and the parts are gathered. Keras's optimizers that treat each number
by itself are cut evenly, `Lamb` and `Muon` by whole variables; others make their update on every
worker.

To a script the optimizer's variables are whole: reading one gathers it, so all workers must do it
together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, cast

import numpy as np

from syrtos.comm import world
from syrtos.comm.communicator import Array, Bounds, Communicator
from syrtos.comm.objects import dtype_of
from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError
from syrtos.keras import backend, keras_internals, updates
from syrtos.keras.features import partition
from syrtos.keras.features.feature import Feature
from syrtos.keras.features.partition import Part
from syrtos.keras.patching import Method, Patch
from syrtos.keras.replica import snapshot, state
from syrtos.records import read_record, record_of

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model, Optimizer, Variable

# Of these optimizers an update looks at a variable as a whole, but at no other.
_BY_VARIABLE = frozenset({"Lamb", "Muon"})
# Variables of more than two dimensions (kernels of convolutions) are cut by rows if each worker
# gets so many; else anywhere. Others are cut by rows, as the gradients of embeddings come.
_ROWS = 16


class _ShardingState:
    """The state of sharding in this process.

    Attributes:
        in_update: whether an update is in progress, in which the variables of an optimizer are this
            worker's parts.
        bytes_of: what is counted of the optimizers that there still are.
        gathered: what `gathering_variables` has gathered, by the identity of the variable.
    """

    def __init__(self, session: Session) -> None:
        self.in_update = False
        self.bytes_of: weakref.WeakKeyDictionary[Optimizer, _Bytes] = weakref.WeakKeyDictionary()
        self.gathered: dict[int, Array] = {}


def _sharding_state() -> _ShardingState:
    return world.part(_ShardingState)


def is_asked() -> bool:
    """Returns whether optimizers are sharded in this run."""
    return (
        world.is_initialized()
        and world.current().options.shard_update
        and world.sharing().world.size > 1
    )


class ShardedUpdate(Feature):
    """`--shard-update`, by patches of optimizers in the file `sharded_update` of each backend."""

    name = "sharding"

    @classmethod
    def is_asked(cls, session: Session) -> bool:
        return is_asked()


FEATURE = ShardedUpdate


def divisible(optimizer: Optimizer | None) -> int:
    """Returns the bytes of optimizer state that `--shard-update` would divide among the workers."""
    known = type(optimizer).__name__ in keras_internals.ELEMENTWISE | _BY_VARIABLE
    if optimizer is None or not known or not type(optimizer).__module__.startswith("keras."):
        return 0
    # Scalars count updates, or are the learning rate: each worker keeps them.
    slots = [v for v in state.variables_of(optimizer) if len(v.shape)]
    return sum(math.prod(v.shape) * dtype_of(state.dtype_name(v)).itemsize for v in slots)


class Sharding:
    """The division of one optimizer's variables among the workers.

    Attributes:
        comm: the workers.
        by_variable: whether each variable is one worker's as a whole.
        has_state: whether the optimizer keeps variables for those of the model.
    """

    def __init__(
        self, optimizer: Optimizer, variables: Sequence[Variable], comm: Communicator
    ) -> None:
        self.comm = comm
        self.by_variable = type(optimizer).__name__ in _BY_VARIABLE
        if self.by_variable:
            parts = partition.by_variable(variables, comm.size)
        else:
            shapes = [tuple(variable.shape) for variable in variables]
            tables = {
                i for i, s in enumerate(shapes) if len(s) == 2 or (s and s[0] >= _ROWS * comm.size)
            }
            parts = partition.divide_evenly(variables, tables, comm.size)
        by_worker = [{part.variable: part for part in mine} for mine in parts]
        self._parts = {
            state.identity(v): [mine.get(i, Part(i, 0, 0, (0,))) for mine in by_worker]
            for i, v in enumerate(variables)
        }
        self.has_state = False

    def part_of(self, variable: Variable) -> Part:
        """Returns this worker's part of a variable of the model."""
        return self._parts[state.identity(variable)][self.comm.rank]

    def bounds_of(self, variable: Variable) -> list[tuple[int, int]]:
        """Returns the first element of each worker's part, and the one after its last."""
        return [(part.start, part.stop) for part in self._parts[state.identity(variable)]]

    def leaves_one_out(self, variable: Variable) -> bool:
        """Returns whether a worker has no part of a variable."""
        return any(start == stop for start, stop in self.bounds_of(variable))

    def knows(self, variable: Variable) -> bool:
        """Returns whether the optimizer was built for this variable."""
        return state.identity(variable) in self._parts

    def gather(self, wholes: Sequence[Array], variables: Sequence[Variable]) -> None:
        """Fills in the other workers' parts of flat arrays of one dtype.

        The arrays hold values of ``variables``.
        """
        self.comm.gather_parts(wholes, [self.bounds_of(v) for v in variables])


@dataclasses.dataclass
class _Division:
    """The record of an optimizer's sharding; None where it has none."""

    sharding: Sharding | None = None


class PartStandIn:
    """A stand-in for this worker's part of a variable in an update.

    Each backend has its own class of stand-ins.

    Attributes:
        owner: the variable.
    """

    owner: object


def bounds_between_hosts(
    optimizer: Optimizer, variables: Sequence[Variable], has_rows: bool = False
) -> Bounds:
    """Returns the bounds of the parts of each variable, if workers need sums of these parts alone.

    The sums are of gradients. The result is empty where a worker needs the whole sum, or where
    sending the parts alone saves nothing.

    Args:
        optimizer: the one that takes the gradients.
        variables: those of the gradients.
        has_rows: whether some gradients list rows, which are summed whole.
    """
    found, session = of(optimizer), world.current()
    options = session.options
    by_parts = found is not None and not found.by_variable and all(map(found.knows, variables))
    is_plain = (
        options.on_nan == "warn"
        and options.compress == "none"
        and not (has_rows and _has_norms(optimizer))
    )
    # To send the parts alone takes half the bytes between hosts, and saves nothing within one.
    several_hosts = session.world.node_count > 1
    return (
        [found.bounds_of(v) for v in variables]
        if found and by_parts and is_plain and several_hosts
        else []
    )


def _has_norms(optimizer: Optimizer) -> bool:
    return bool(optimizer.clipnorm or optimizer.global_clipnorm)


def clips_parts(optimizer: Optimizer) -> Communicator | None:
    """Returns the workers that each have a part of the gradients that are to be clipped by norms.

    None where each has all, or norms don't matter.
    """
    found = of(optimizer)
    return (
        found.comm
        if found and updates.update_of(optimizer).gives_parts and _has_norms(optimizer)
        else None
    )


def of(optimizer: Optimizer) -> Sharding | None:
    """Returns the sharding of an optimizer; None where every worker makes its whole update."""
    found = read_record(optimizer, _Division).sharding
    # Without state there is nothing that dividing it would save.
    return found if found is not None and found.has_state else None


class _Bytes:
    """The bytes of one optimizer's state: those that this worker keeps, and all."""

    def __init__(self) -> None:
        self.kept = self.total = 0


def count(optimizer: Optimizer, variable: Variable, kept: int) -> None:
    """Counts a variable of an optimizer for the summary, which adds up the existing optimizers.

    Args:
        optimizer: the one that has the variable.
        variable: one of the model, of the same shape.
        kept: how many of its elements this worker keeps.
    """
    session = world.current()
    counted = session.part(_ShardingState).bytes_of
    found = counted.setdefault(optimizer, _Bytes())
    each = dtype_of(state.dtype_name(variable)).itemsize
    found.kept += each * kept
    found.total += each * math.prod(variable.shape)
    kept, total = (
        sum(getattr(one, name) for one in counted.values()) for name in ("kept", "total")
    )
    session.ledger.say(state_kept=kept, state_whole=total)


@contextlib.contextmanager
def updating() -> Iterator[None]:
    """Context manager: an optimizer's variables are this worker's parts inside."""
    process = _sharding_state()
    before, process.in_update = process.in_update, True
    try:
        yield
    finally:
        process.in_update = before


# -- an optimizer's variables ----------------------------------------------------------------------


class _Cut:
    """A variable of an optimizer of which this worker keeps a part. Mixed into Keras's class.

    It is whole to a script, and the part within an update.
    """

    # Of Keras's class.
    dtype: object
    name: str

    sharding: Sharding
    owner: Variable  # of the model
    whole_shape: tuple[int, ...]
    part: Part

    @property
    def shape(self) -> tuple[int, ...]:
        return super().shape if _sharding_state().in_update else self.whole_shape  # type: ignore[misc]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def value(self) -> object:
        if _sharding_state().in_update:
            return super().value  # type: ignore[misc]
        return backend.active().on_host(
            self._gather_from, state.held_objects([self])[0], self.whole_shape
        )

    def assign(self, value: object) -> object:
        """Assigns this worker's part of a whole value; within an update the value is the part."""
        if _sharding_state().in_update:
            return super().assign(value)  # type: ignore[misc]
        whole = np.asarray(value)
        if whole.shape != self.whole_shape:
            raise ValueError(
                f"A variable of shape {self.whole_shape} can't be assigned a value of shape"
                f" {whole.shape}."
            )
        with updating():
            part = whole.reshape(-1)[self.part.start : self.part.stop].reshape(self.part.shape)
            return super().assign(part)  # type: ignore[misc]

    def gather_whole(self) -> Array:
        """Returns the whole value; all workers call it together."""
        return self._gather_from(backend.active().memory_of(self))

    def _gather_from(self, mine: Array) -> Array:
        # One worker alone saves a model whose variables all have gathered before.
        gathered = _sharding_state().gathered
        if id(self) in gathered:
            return gathered[id(self)]
        result = np.empty(int(np.prod(self.whole_shape)), mine.dtype)
        result[self.part.start : self.part.stop] = mine.reshape(-1)
        self.sharding.comm.agree(
            f"read or save `{state.name_of(self)}`, which --shard-update divides among the workers:"
            " all of them must do it together"
        )
        self.sharding.gather([result], [self.owner])
        return result.reshape(self.whole_shape)

    def _serialize_to_tensors(self) -> NoReturn:
        raise ConfigurationError(
            "`tf.train.Checkpoint` can't store an optimizer whose state is divided among the"
            " workers. Store the model with `model.save`, or leave out --shard-update."
        )

    def _export_to_saved_model_graph(self, *args: object, **kwargs: object) -> NoReturn:
        raise ConfigurationError(
            "`tf.saved_model.save` can't store an optimizer whose state is divided among the"
            " workers. Use `model.export`, which leaves it out, or leave out --shard-update."
        )


@contextlib.contextmanager
def gathering_variables(model: Model) -> Iterator[None]:
    """Context manager: one worker alone can read all variables of a model's optimizers inside.

    All workers must enter.
    """
    slots = [v for v in snapshot.slots_of(model) if state.is_cut(v)] if is_asked() else []
    gathered = _sharding_state().gathered
    found = {id(v): v.gather_whole() for v in slots if id(v) not in gathered}
    gathered.update(found)
    try:
        yield
    finally:
        for each in found:
            del gathered[each]


@functools.cache
def _cut_class(kind: type) -> type:
    return type(kind.__name__, (_Cut, kind), {})


def _make_cut(slot: object, sharding: Sharding, owner: Variable) -> _Cut:
    # Keras has made and tracked the variable: it gets the new class in its place in the optimizer.
    slot.__class__ = _cut_class(type(slot))
    cut = cast("_Cut", slot)
    cut.sharding, cut.owner, cut.part = sharding, owner, sharding.part_of(owner)
    cut.whole_shape = tuple(owner.shape)
    return cut


class Reference:
    """Stands for a variable of the model, in another shape or layout.

    An optimizer makes a variable of its own for it.
    """

    def __init__(self, owner: Variable, shape: tuple[int, ...], layout: object = None) -> None:
        self.path, self.name = keras_internals.path_of(owner), owner.name
        self.shape, self.dtype, self._layout = shape, owner.dtype, layout


def _building(original: Method) -> Method:
    def build(self: Optimizer, variables: Iterable[Variable]) -> None:
        known = type(self).__name__ in keras_internals.ELEMENTWISE | _BY_VARIABLE
        asked = is_asked() and known and type(self).__module__.startswith("keras.")
        # Not yet divided: moving averages of weights and sums of gradients, which others than the
        # update use.
        original(self, variables)
        if asked:
            sharding = Sharding(self, list(variables), world.current().comm)
            record_of(self, _Division).sharding = sharding

    return build


def _adding(original: Method) -> Method:
    def add_variable_from_reference(
        self: Optimizer,
        reference_variable: Variable,
        name: str | None = None,
        initializer: object = "zeros",
    ) -> object:
        sharding = read_record(self, _Division).sharding
        if sharding is None or not sharding.knows(reference_variable):
            return original(self, reference_variable, name, initializer)
        part = sharding.part_of(reference_variable)
        sharding.has_state = True
        count(self, reference_variable, part.stop - part.start)
        reference = Reference(reference_variable, part.shape)
        return _make_cut(original(self, reference, name, initializer), sharding, reference_variable)

    return add_variable_from_reference


def of_owner(original: Method) -> Method:
    """Wraps an optimizer's `_var_key`: what stands for a part has the key of its variable."""

    def key(self: Optimizer, variable: Variable | PartStandIn) -> object:
        return original(self, variable.owner if isinstance(variable, PartStandIn) else variable)

    return key


_OPTIMIZER = "keras.src.optimizers.base_optimizer:BaseOptimizer"  # which TensorFlow's class wraps

PATCHES = [
    Patch(
        _OPTIMIZER,
        "build",
        _building,
        "From here on an optimizer makes what its update alone uses.",
    ),
    Patch(
        _OPTIMIZER,
        "add_variable_from_reference",
        _adding,
        "Made in the shape of this worker's part.",
    ),
]
