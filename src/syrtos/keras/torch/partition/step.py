"""A step of a model on torch, which all workers compute together on the whole batch."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import keras
import numpy as np
import torch

from syrtos.comm.communicator import share_of
from syrtos.comm.world import Session
from syrtos.keras.torch import gathering, rows, torch_internals
from syrtos.keras.torch.partition import rules
from syrtos.keras.torch.partition.exchanges import TensorExchanges
from syrtos.keras.torch.partition.placed import PlacedTensor, cut_like, wholes
from syrtos.keras.torch.partition.placements import TERM, BatchShare, RowPart
from syrtos.keras.torch.step import TorchStep, as_one_process, as_several_workers
from syrtos.scopes import set_within

_Tree = TypeVar("_Tree")
_Root = torch.Tensor | torch.autograd.graph.GradientEdge
Roots = _Root | Sequence[_Root]
ParametersOf = Callable[[Roots], Sequence[torch.Tensor]]
_step: ContextVar[PartitionedBatch | None] = ContextVar("step", default=None)
_NAMED = 5  # so many operations are named in the record of a run
_FIRST = RowPart(0, 1)
# Of a single row a tensor's strides do not say in which order its dimensions are in memory, which
# draws and views depend on.
_LEAST_ROWS = 2
assert rules.__all__


def current_batch() -> PartitionedBatch | None:
    """Returns the batch that this thread computes together with the other workers."""
    return _step.get()


@contextlib.contextmanager
def outside_of_batch() -> Iterator[None]:
    """Context manager of a step on another batch, which the script makes within one on this."""
    with set_within(_step, None), as_several_workers():
        yield


class PartitionedBatch:
    """A batch of which each worker has its rows, in a step on it. All workers make it together.

    Attributes:
        share: this worker's rows; None where every worker computes the whole batch.
        data: the batch, as the step takes it.
        samples: this worker's rows, which count as its samples.
        has_no_rows: whether no tensor of the batch has rows.
        has_reduced: whether gradients were made, and are whole.
    """

    def __init__(
        self,
        batch: object,
        session: Session,
        parameters: ParametersOf,
        is_of_script: bool = False,
    ) -> None:
        """
        Args:
            batch: the whole batch, or a `TorchShare` that holds this worker's rows.
            session: the workers.
            parameters: returns the tensors whose gradients a `backward` of its arguments makes.
            is_of_script: whether the script has got the batch from a loader: its arrays stay arrays,
                and a tensor that is part of another one stays whole, which the script may write to.
        """
        self._is_of_script = is_of_script
        self._session, self._parameters_of = session, parameters
        self.has_reduced = False
        self._exchanges = TensorExchanges(session.comm)
        self.share: BatchShare | None = None
        self.data, self.samples, self.has_no_rows = batch, 0, False
        if isinstance(batch, rows.TorchShare):
            self._place_share(batch)
        else:
            self._place_whole(batch)

    def _place_whole(self, batch: object) -> None:
        rank, size = self._session.world.rank, self._session.world.size
        leaves = [leaf for leaf in self._leaves(batch) if rows.has_rows(leaf)]
        total = len(leaves[0]) if leaves else 1
        bounds = [share_of(total, one, size) for one in range(size)]
        counts = [stop - start for start, stop in bounds]
        self.samples = counts[rank]
        self.has_no_rows = not leaves or not all(map(_is_dense, leaves))
        if min(counts) < _LEAST_ROWS or self.has_no_rows:
            return
        share = self.share = BatchShare(counts, rank, self._exchanges)
        # Keras sorts the keys of dictionaries, which a script may have of several kinds.
        map_leaves = torch_internals.tree_map if self._is_of_script else keras.tree.map_structure
        self.data = map_leaves(lambda leaf: self._place_leaf(leaf, share), batch)

    def _leaves(self, batch: object) -> list[Any]:
        if not self._is_of_script:
            return keras.tree.flatten(batch)
        return [x for x in torch_internals.tree_leaves(batch) if isinstance(x, torch.Tensor)]

    def _place_leaf(self, leaf: Any, share: BatchShare) -> Any:
        """Returns this worker's rows of a leaf of the batch; a leaf without these rows itself."""
        if self._is_of_script:
            if getattr(leaf, "_base", None) is not None:
                return leaf
        elif isinstance(leaf, np.ndarray) and leaf.dtype.name in _DTYPES:
            leaf = torch.from_numpy(leaf)
        if not isinstance(leaf, torch.Tensor) or not leaf.ndim or len(leaf) != share.total:
            return leaf
        return cut_like(leaf, share, _FIRST)

    def _place_share(self, batch: rows.TorchShare) -> None:
        comm, self.samples = self._session.comm, batch.samples
        counts = [int(n) for n in comm.agree("rows of each worker", float(batch.samples))]
        if min(counts) < _LEAST_ROWS:
            self.data = gathering.rows_of_all(
                TorchStep(self._session, batch.samples, False), batch.data
            )
            return
        share = self.share = BatchShare(counts, self._session.world.rank, self._exchanges)

        def place(leaf: Any) -> Any:
            is_row = isinstance(leaf, torch.Tensor) and leaf.ndim and len(leaf) == batch.samples
            return PlacedTensor(leaf, _FIRST, share) if is_row else leaf

        self.data = _map(place, batch.data)

    def compute(self, step: Callable[[Any], _Tree]) -> _Tree:
        """Computes a step, and returns its outputs for the whole batch."""
        if self.share is None:
            return self.compute_whole(step)
        with torch_internals.without_compilation():
            with self.as_current():
                outputs = cast("_Tree", to_wholes(step(self.data)))
            self.data = None
            with as_one_process():
                self._end(self.share)
            return outputs

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        """Context manager of what is computed with this batch, of which workers have rows."""
        with as_one_process(), set_within(_step, self):
            yield

    def compute_whole(self, step: Callable[[Any], _Tree]) -> _Tree:
        """Computes a step on the whole batch, as one process does, on every worker."""
        with as_one_process(), torch_internals.without_compilation():
            return step(to_wholes(self.data))

    def note_whole(self) -> None:
        """Notes from now on what every worker computes whole: see `describe_whole`."""
        if self.share is not None:
            self.share.whole = {}

    def record_whole(self) -> None:
        """Records what every worker has computed whole, if it was noted, and is anything."""
        if whole := self.describe_whole():
            self._session.ledger.say(computed_whole=whole)

    def forget_parts(self) -> None:
        """Forgets the tensors made so far. One that is kept is exchanged when it is read."""
        if self.share is not None:
            self.share.pending.clear()
            self.share.alive.clear()

    def _end(self, share: BatchShare) -> None:
        """Makes whole what the script keeps of the step: gradients, or a tensor in a list."""
        self._reduce([(p, p.grad) for p in self._parameters_of(()) if p.grad is not None])
        share.pending.clear()
        kept = _alive(share)
        comm = self._session.comm
        if not any(comm.agree("tensors of the step that are kept", float(len(kept)))):
            return
        del kept
        gc.collect()  # what only a cycle holds may be gone on some workers
        kept = _alive(share)
        mine = {_describe(place, tensor): tensor for place, tensor in kept}
        everyone = comm.allgather_object(list(mine))
        common = set(everyone[0]).intersection(*everyone[1:])
        wholes([tensor for name, tensor in mine.items() if name in common])

    # -- gradients ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reducing_gradients(self, roots: Roots) -> Iterator[None]:
        """Context manager around `backward`, of which gradients of parameters are whole."""
        parameters = [p for p in self._parameters_of(roots) if p.requires_grad]
        # Added to an older gradient, each part would travel alone.
        before = [(p, p.grad) for p in parameters if p.grad is not None]
        for parameter, _ in before:
            parameter.grad = None
        is_over = False
        try:
            yield
            is_over = True
        finally:
            if is_over:
                self.has_reduced = True
                self._reduce([(p, p.grad) for p in parameters if p.grad is not None])
            for parameter, old in before:
                with torch.no_grad():
                    added = parameter.grad if is_over else None
                    parameter.grad = old if added is None else old.add_(added)

    def _reduce(self, given: Sequence[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
        placed = [(p, grad) for p, grad in given if isinstance(grad, PlacedTensor)]
        for dtype in dict.fromkeys(grad.dtype for _, grad in placed):
            sums = [
                (p, g)
                for p, g in placed
                if g.known_whole is None and g.placement is TERM and g.dtype is dtype
            ]
            if sums and dtype.is_floating_point:
                found = self._exchanges.gradients([g.local for _, g in sums], [p for p, _ in sums])
                for (_, grad), whole in zip(sums, found, strict=True):
                    grad.keep_whole(whole)
        for (parameter, _), whole in zip(placed, wholes([g for _, g in placed]), strict=True):
            parameter.grad = whole

    def make_whole(self, grads: Sequence[torch.Tensor | None]) -> None:
        """Makes gradients whole together, which the script has asked for."""
        wholes([grad for grad in grads if isinstance(grad, PlacedTensor)])

    def describe_whole(self) -> str:
        """Returns the operations that every worker computed whole, as a text; empty without any."""
        found = (self.share and self.share.whole) or {}
        named = sorted(found, key=lambda name: -found[name])
        more = len(named) - _NAMED
        return ", ".join(named[:_NAMED]) + f" and {more} more" * (more > 0)


def _describe(place: int, tensor: PlacedTensor) -> str:
    return f"{place} {tuple(tensor.shape)} {tensor.dtype} {tensor.placement}"


def _alive(share: BatchShare) -> list[tuple[int, PlacedTensor]]:
    """Returns the tensors of a step that are alive and not known whole, with their numbers."""
    found = [(place, ref()) for place, ref in enumerate(share.alive)]
    return [
        (place, tensor)
        for place, tensor in found
        if isinstance(tensor, PlacedTensor) and tensor.known_whole is None
    ]


def _map(function: Callable[[Any], Any], tree: object) -> object:
    return keras.tree.map_structure(function, tree)


def _is_dense(leaf: object) -> bool:
    return not isinstance(leaf, torch.Tensor) or leaf.layout is torch.strided


# Of other arrays the tensors have other dtypes than Keras makes of them.
_DTYPES = ("float32", "float16", "int32", "int64", "uint8", "bool")


def to_wholes(tree: _Tree) -> _Tree:
    """Returns a structure with whole tensors. All workers call this together."""
    leaves = [leaf for leaf in torch_internals.tree_leaves(tree) if isinstance(leaf, PlacedTensor)]
    found = dict(zip(map(id, leaves), wholes([leaf.detach() for leaf in leaves]), strict=True))  # pyright: ignore
    return cast("_Tree", torch_internals.tree_map(lambda leaf: found.get(id(leaf), leaf), tree))
