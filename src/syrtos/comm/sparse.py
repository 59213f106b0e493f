"""Exchanges of rows of a large table, sent as rows or as the whole table.

The form that moves fewer bytes is chosen.
"""

from __future__ import annotations

import zlib

import numpy as np

from syrtos.comm.arrays import Array, contiguous, scaled_copy, signature
from syrtos.comm.communicator import Communicator


def weighted_rows(
    comm: Communicator,
    values: Array,
    indices: Array,
    table_rows: int,
    weight: float,
    may_merge: bool = True,
    may_be_whole: bool = False,
) -> tuple[Array, Array]:
    """Returns the weighted sum of gradients that touch some rows of a table.

    The sum is that of `Communicator.weighted_sum`. Sent as rows, the result lists every worker's
    rows in rank order: for contiguous shares of a global batch that is the very list one process
    would have got. Rows may repeat; their values add up.

    Args:
        values: (rows, ...) floats.
        indices: (rows,) integers, the row of the table that each value belongs to.
        table_rows: rows of the whole table.
        weight: this worker's share of the step.
        may_merge: whether values of the same row may be added up on the way. Sent as the table they
            are; an optimizer that squares or clips single values would then not compute the same as
            in one process.
        may_be_whole: whether workers that all give the same have computed the same whole batch: the
            result is what each of them gave, once.

    Returns:
        Values and indices of the sum.
    """
    weights = comm.agree(f"sparse exchange {signature(values, rows=False)} of {table_rows}", weight)
    counts = comm.agree("rows of the sparse exchange", values.shape[0])
    total = sum(weights)
    share = weight / total if total else 0.0
    if may_be_whole and not may_merge and len(set(weights)) == len(set(counts)) == 1:
        checksum = zlib.crc32(contiguous(indices).data, zlib.crc32(contiguous(values).data))
        if len(set(comm.agree("rows of one batch", float(checksum)))) == 1:
            return values.copy(), indices.copy()
    if not may_merge or moves_fewer_as_rows(
        int(sum(counts)), table_rows, _row_bytes(values), indices.itemsize
    ):
        scaled = np.empty_like(values)
        scaled_copy(values, share, scaled)
        return comm.allgather(scaled), comm.allgather(indices)
    table = np.zeros((table_rows, *values.shape[1:]), values.dtype)
    # A worker without samples adds nothing, whatever its values hold (NaN included).
    if share:
        np.add.at(table, indices, values)
    summed, _ = comm.weighted_sum([table.reshape(-1)], weight)
    return summed[0].reshape(table.shape), np.arange(table_rows, dtype=indices.dtype)


def sum_repeated_rows(values: Array, indices: Array) -> tuple[Array, Array]:
    """Returns each row of a table once, in ascending order, with the sum of its values.

    Args:
        values: (rows, ...) floats.
        indices: (rows,) integers, which may repeat.
    """
    found, places = np.unique(indices, return_inverse=True)
    summed = np.zeros((len(found), *values.shape[1:]), values.dtype)
    np.add.at(summed, places.reshape(-1), values)
    return summed, found


def moves_fewer_as_rows(rows: int, table_rows: int, row_bytes: int, index_bytes: int) -> bool:
    """Returns whether gathering ``rows`` rows moves fewer bytes than reducing the table.

    ``rows`` counts the rows of all workers together.
    """
    # A worker receives each gathered row once; a reduction sends and receives each row of the
    # table.
    return rows * (row_bytes + index_bytes) <= 2 * table_rows * row_bytes


def _row_bytes(values: Array) -> int:
    return values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
