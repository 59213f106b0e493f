"""The tensors of a batch, and this worker's rows of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from syrtos.comm.world import Session
from syrtos.keras.tensorflow import gathering, ops
from syrtos.keras.tensorflow.input import Numbered, TensorShare
from syrtos.keras.tensorflow.input_comparison import compare_numbered
from syrtos.keras.tensorflow.partition.exchanges import Exchanges, WorkerExchanges
from syrtos.keras.tensorflow.partition.share import Share
from syrtos.keras.tensorflow.partition.values import RowPlacement, Value
from syrtos.keras.tensorflow.rows import count_rows, has_rows


@dataclasses.dataclass
class BatchRows:
    """The tensors of a batch, and which of them have its rows.

    Attributes:
        structure: the batch as the step takes it.
        flat: its leaves, the components of ragged and sparse tensors among them.
        tensors: those that are tensors, whole or, where ``is_share``, this worker's rows of them.
        dense: the places of tensors that have the batch's rows.
        share: this worker's rows.
        exchanges: the other workers.
        is_share: whether ``tensors`` are this worker's rows alone.
        shares_can_be_split: Boolean scalar, in a share: whether all workers have rows, of which their
            tensors have equally many.
    """

    structure: Any
    flat: list[Any]
    tensors: list[tf.Tensor]
    dense: list[int]
    share: Share
    exchanges: Exchanges
    is_share: bool = False
    shares_can_be_split: Any = True

    @property
    def is_always_split(self) -> bool:
        """True where it is known that each worker has rows, and tensors have equally many."""
        return self.share.is_static and self.share.total >= self.exchanges.size

    def can_be_split(self) -> tf.Tensor:
        """Returns whether each worker has rows, and tensors have equally many; a Boolean scalar."""
        # In a batch of one row a size of 1 may be the rows, or be broadcast.
        conditions = [self.share.total >= self.exchanges.size]
        if self.is_share:
            conditions.append(self.shares_can_be_split)
        else:
            conditions += [tf.shape(self.tensors[i])[0] == self.share.total for i in self.dense[1:]]
        return tf.reduce_all(tf.stack(conditions))

    def specs(self) -> list[tf.TensorSpec]:
        """Returns the specs of the whole batch's tensors."""
        found = []
        for i, tensor in enumerate(self.tensors):
            shape = tensor.shape
            if i in self.dense and not self.share.is_static:
                shape = [None, *shape[1:]]
            found.append(tf.TensorSpec(shape, tensor.dtype))
        return found

    def pack(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Returns tensors in the structure of the batch."""
        return with_tensors(self.structure, self.flat, tensors)

    def split(self) -> list[Value]:
        """Returns this worker's rows."""
        values = []
        for i, tensor in enumerate(self.tensors):
            if i not in self.dense:
                values.append(Value(tensor))
                continue
            mine = tensor if self.is_share else tensor[self.share.start : self.share.stop]
            count = self.share.count if self.share.is_static else None
            mine.set_shape([count, *tensor.shape[1:]])
            values.append(Value(mine, RowPlacement(0), gathered=None if self.is_share else tensor))
        return values

    def whole(self) -> Any:
        """Returns the whole batch in its structure."""
        return self.pack(self.whole_tensors())

    def whole_tensors(self) -> list[tf.Tensor]:
        """Returns the tensors of the whole batch. All workers call this together."""
        if not self.is_share:
            return self.tensors
        gathered = iter(self.exchanges.gather([self.tensors[i] for i in self.dense]))
        return [next(gathered) if i in self.dense else t for i, t in enumerate(self.tensors)]


def rows_of_numbered(batch: Numbered, session: Session) -> BatchRows:
    """Returns the rows of a whole batch, which the workers compare now and then."""
    flat = tf.nest.flatten(batch.data, expand_composites=True)
    with (
        tf.device("/cpu:0"),
        tf.control_dependencies([compare_numbered(batch.number, batch.data, session.input_comm)]),
    ):
        tensors = [tf.identity(leaf) for leaf in flat if isinstance(leaf, tf.Tensor)]
    return rows_among(with_tensors(batch.data, flat, tensors), session)


def rows_among(data: Any, session: Session) -> BatchRows:
    """Returns the rows of a structure of tensors, which is the same on all workers."""
    comm = session.comm
    flat = tf.nest.flatten(data, expand_composites=True)
    if len(flat) != len(tf.nest.flatten(data)):  # ragged or sparse tensors
        return _whole_rows(data, session)
    tensors = [leaf for leaf in flat if isinstance(leaf, tf.Tensor)]
    total, dense = _batch_rows_among(tensors, comm.size)
    share = Share.of(total, comm.rank, comm.size)
    return BatchRows(data, flat, tensors, dense, share, WorkerExchanges(session, share))


def _batch_rows_among(tensors: Sequence[tf.Tensor], workers: int) -> tuple[Any, list[int]]:
    """Returns how many rows a batch has, an int where that is static, and which tensors have them."""
    ranked = [i for i, tensor in enumerate(tensors) if tensor.shape.rank]
    if dynamic := [i for i in ranked if tensors[i].shape[0] is None]:
        return tf.shape(tensors[dynamic[0]])[0], dynamic
    total = (tensors[ranked[0]].shape[0] or 0) if ranked else 1
    # A batch of fewer rows than workers is computed whole.
    dense = [i for i in ranked if tensors[i].shape[0] == total] if total >= workers else []
    return total, dense


def _whole_rows(data: Any, session: Session) -> BatchRows:
    """Returns a whole batch of which no tensor is known to have the batch's rows."""
    comm = session.comm
    flat = tf.nest.flatten(data, expand_composites=True)
    tensors = [tf.identity(leaf) for leaf in flat if isinstance(leaf, tf.Tensor)]
    leaf = next((leaf for leaf in tf.nest.flatten(data) if has_rows(leaf)), None)
    count = 1 if leaf is None else tf.cast(count_rows(leaf), tf.int32)
    share = Share.of(count, comm.rank, comm.size)
    return BatchRows(data, flat, tensors, [], share, WorkerExchanges(session, share))


def rows_of_share(batch: TensorShare, session: Session) -> BatchRows:
    """Returns the rows of a share that a pipeline has cut; the workers add up their numbers."""
    comm = session.comm
    samples = tf.cast(batch.samples, tf.int32)
    flat = tf.nest.flatten(batch.data, expand_composites=True)
    are_plain = all(leaf.shape.rank is not None for leaf in flat if isinstance(leaf, tf.Tensor))
    if len(flat) != len(tf.nest.flatten(batch.data)) or not are_plain:  # ragged or sparse tensors
        return _whole_rows(gathering.rows_of_all(comm, samples > 0, batch.data), session)
    tensors = [tf.identity(leaf) for leaf in flat if isinstance(leaf, tf.Tensor)]
    dense = [i for i, tensor in enumerate(tensors) if tensor.shape.rank]
    counts = [tf.shape(tensors[i])[0] for i in dense]
    # A worker without samples has a row that does not count.
    is_empty = samples == 0
    uneven = tf.reduce_any(
        [tf.logical_and(count != samples, tf.logical_not(is_empty)) for count in counts]
    )
    # A pipeline may give the workers any numbers of rows, e.g. where records are left out.
    mine = tf.stack([samples, tf.cast(uneven, tf.int32)])
    everyone = tf.ensure_shape(ops.allgather(comm, mine[tf.newaxis]), [comm.size, 2])
    before = tf.reduce_sum(everyone[: comm.rank, 0])
    share = Share(before, before + samples, tf.reduce_sum(everyone[:, 0]))
    can_be_split = (everyone[:, 0] > 0) & (everyone[:, 1] == 0)
    for i, count in zip(dense, counts, strict=True):
        tensors[i] = tensors[i][: tf.where(is_empty, 0, count)]
    return BatchRows(
        batch.data,
        flat,
        tensors,
        dense,
        share,
        WorkerExchanges(session, share),
        is_share=True,
        shares_can_be_split=tf.reduce_all(can_be_split),
    )


def with_tensors(structure: Any, flat: Sequence[Any], tensors: Sequence[tf.Tensor]) -> Any:
    """Returns a structure with other tensors; other leaves stay."""
    left = iter(tensors)
    found = [next(left) if isinstance(leaf, tf.Tensor) else leaf for leaf in flat]
    return tf.nest.pack_sequence_as(structure, found, expand_composites=True)
