"""The interrupt of a worker by another one's."""

from __future__ import annotations


class OtherInterruptedError(KeyboardInterrupt):
    """Another worker got SIGINT in `fit`, which ends on all workers then.

    To the script it is the `KeyboardInterrupt` that one process would have got.
    """
