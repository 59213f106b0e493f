"""The interrupt of a worker by another one's."""

from __future__ import annotations


class OtherInterruptedError(KeyboardInterrupt):
    """Another worker got SIGINT in `fit`, which ends on all workers then.

    To the script it is the `KeyboardInterrupt` that one process would have got.

    Attributes:
        rank: the rank that got it.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
