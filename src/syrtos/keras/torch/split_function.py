"""The functions of a model on torch that Keras calls for each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import keras
import torch

from syrtos.comm.world import Session
from syrtos.keras.features import registry
from syrtos.keras.replica import accumulation
from syrtos.keras.split import known_parts, verdicts
from syrtos.keras.torch import gradients, torch_internals
from syrtos.keras.torch.partition.step import PartitionedBatch
from syrtos.keras.torch.partition.verifying import verify_step
from syrtos.keras.torch.rows import TorchShare

_Tree = TypeVar("_Tree")
# Layers of Keras's whose draws have the rows of their input first, and are drawn for all rows.
_DRAWING = frozenset({
    "Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "GaussianDropout", "GaussianNoise", "AlphaDropout",
})  # fmt: skip
_RECURRENT = "keras.src.layers.rnn."


class TorchFunction:
    """A function of a model on torch, whose steps all workers compute together.

    A step of Keras's own parts alone is computed on this worker's rows, as plain tensors: that is
    right for them, and fastest. Any other step is partitioned (see `syrtos.keras.torch.partition`).

    Attributes:
        model: the model whose function it is.
        reduces_early: whether gradients of shares are reduced where they are made, because code of
            the script's sees them.
        verifying: counts the calls of the function.
    """

    def __init__(self, model: keras.Model, session: Session, name: str, stock: bool) -> None:
        """
        Args:
            model: the model whose function it is.
            session: the workers.
            name: the name of the step: `train_step`, `test_step` or `predict_step`.
            stock: whether the step is Keras's own.
        """
        self.model, self._session, self._name, self._stock = model, session, name, stock
        self.reduces_early = known_parts.script_sees_gradients(model, stock, name) or (
            name == "train_step" and gradients.script_reads_gradients(session)
        )
        self.verifying = verdicts.Verifying(model, session)
        self._accumulation = accumulation.Kind(session.comm, model)
        # Workers that train alone for some steps exchange nothing in them.
        alone = registry.trains_apart() or (name == "train_step" and session.options.sync_every > 0)
        self._is_split = verdicts.is_split(session) and not alone
        self._partitions: bool | None = None if self._is_split else False
        self._counts_rows = False
        self._noted = 0
        self._is_to_verify = self._is_split and session.options.verifies

    def partitions(self, batch: object) -> bool:
        """Returns whether a step on this batch is partitioned. All workers call this together."""
        if not self._is_split:
            return False
        if self._partitions is None:
            mine = float(any(True for _ in self._unknown_parts()))
            answers = self._session.comm.agree("is the step partitioned?", mine)
            self._partitions = any(answers)
            kinds = {type(layer).__name__ for layer in torch_internals.layers_of(self.model)}
            self._counts_rows = any(kind.startswith("SpatialDropout") for kind in kinds)
        if self._partitions or not getattr(self.model, "built", True):
            return True
        if isinstance(batch, TorchShare):
            return self._counts_rows
        return not _is_even(batch, 2 * self._session.world.size)

    def ask_again(self) -> None:
        """Looks at the step's parts again before its next call: hooks may have come."""
        if self._is_split:
            self._partitions = None

    def note_step(self, partitioned: bool) -> None:
        """Notes the next step: which gradients it accumulates. All workers call this together."""
        self.verifying.count_call()
        if self._name == "train_step":
            self._accumulation.note(partitioned or self.reduces_early)

    def compute_together(self, step: Callable[[list[object]], _Tree], batch: object) -> _Tree:
        """Computes a partitioned step, and returns its outputs for the whole batch."""
        session = self._session
        found = PartitionedBatch(batch, session, self._parameters)
        session.ledger.count(found.samples)
        for feature in registry.active() if self._name == "train_step" else ():
            feature.count_samples(found.samples)
        is_noted = self._noted < _NOTED
        self._noted += 1
        if is_noted:
            found.note_whole()
        outputs = found.compute(lambda data: step([data]))
        found.record_whole()
        if is_noted and found.has_no_rows:
            verdicts.tell(_NO_ROWS, session, f"`{self._name}` of {self.model.name}")
        return outputs

    def _parameters(self, _: object) -> list[torch.Tensor]:
        return list(self.model.parameters())

    def verify(
        self, step: Callable[[list[object]], object], local: Callable[[], object], batch: object
    ) -> None:
        """Compares the first step with one process, for `syrtos verify`. All workers call this together.

        Args:
            step: computes a step.
            local: computes it on shares; used where the step is not partitioned.
            batch: of the step.
        """
        if not self._is_to_verify:
            return
        self._is_to_verify = False
        partitions = self.partitions(batch)

        def one() -> object:
            return PartitionedBatch(batch, self._session, self._parameters).compute_whole(
                lambda data: step([data])
            )

        def together() -> tuple[object, str]:
            if not partitions:
                return local(), ""
            found = PartitionedBatch(batch, self._session, self._parameters)
            found.note_whole()
            return found.compute(lambda data: step([data])), found.describe_whole()

        verify_step(self.model, self._session, self._name, one, together)

    def _unknown_parts(self) -> Iterator[object]:
        """Yields the parts of the step of which it is not known that they are right on a share."""
        if known_parts.fixed_batch(self.model):
            yield "a stateful layer"
        yield from known_parts.unknown_parts(self.model, self._stock, self._name)
        yield from torch_internals.hooks_of(self.model)
        layers = torch_internals.layers_of(self.model)
        yield from filter(_draws_otherwise, layers)
        # Such a layer trains scales, whose gradients are values of the whole batch.
        yield from (layer for layer in layers if getattr(layer, "quantization_mode", None))
        # Gradients of a share's mean exceed the range of float16 where those of the batch's don't.
        if self._name == "train_step":
            yield from (x for x in layers if getattr(x, "compute_dtype", "") == "float16")


# Of so many steps it is noted what every worker computes whole.
_NOTED = 2
_NO_ROWS = "its batches have no dense tensors with rows"


def _draws_otherwise(layer: object) -> bool:
    """Returns whether a layer draws random numbers whose shape is not known to begin with the rows."""
    kind = type(layer)
    seeds = (
        value for value in vars(layer).values() if isinstance(value, keras.random.SeedGenerator)
    )
    draws = any(True for _ in seeds)
    return draws and kind.__name__ not in _DRAWING and not kind.__module__.startswith(_RECURRENT)


def _is_even(batch: object, least: int) -> bool:
    """Returns whether a batch has dense tensors of equally many rows, of at least so many."""
    leaves = [leaf for leaf in keras.tree.flatten(batch) if getattr(leaf, "shape", ())]
    counts = {len(leaf) for leaf in leaves}
    is_dense = all(getattr(leaf, "layout", torch.strided) is torch.strided for leaf in leaves)
    return is_dense and len(counts) == 1 and min(counts) >= least
