"""Squared norms of gradients, from which the gradient noise scale is estimated.

They are measured on some steps: that of a worker's own gradient, and that of the mean over all
workers.

Source: McCandlish, Kaplan, Amodei et al., "An Empirical Model of Large-Batch Training", arXiv
1812.06162, appendix A.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a launcher, which reads ledgers alone, starts 60 ms earlier without
    import numpy.typing as npt

# Bytes of gradients for each step between two that are measured, and the least and most of these
# steps. A norm is one pass over memory that the exchange has just moved: on one step of many where
# gradients are large, it costs less than 1 % of a step.
_BYTES, _LEAST, _MOST = 500_000, 4, 32


class GradientNorms:
    """The norms of the training step that goes on.

    Attributes:
        is_off: whether nothing is measured, as the gradients of several steps are added up before
            they are exchanged.
    """

    def __init__(self) -> None:
        self.is_off = False
        self._measures = False
        self._own = self._mean = 0.0
        self._bytes = self._seen = 0

    def begin(self, step: int, steps: int) -> None:
        """Begins a training step, or as many as ``steps`` executed as one.

        ``step`` is the number of training steps so far, the same on all workers.
        """
        every = min(max(self._bytes // _BYTES, _LEAST), _MOST)
        self._measures = not self.is_off and steps == 1 and step % every == 0
        self._own = self._mean = 0.0
        self._seen = 0

    def add(
        self, own: Sequence[npt.NDArray[Any]], means: Sequence[npt.NDArray[Any]], weight: float
    ) -> None:
        """Adds the norms of gradients of some variables that have been exchanged.

        It may be called in any thread.

        Args:
            own: this worker's gradients.
            means: the means over all workers, of the same shapes.
            weight: the weight of this worker; without samples it has no gradient.
        """
        self._seen += sum(array.nbytes for array in own)
        if self._measures and weight:
            self._own += sum(map(_square, own))
            self._mean += sum(map(_square, means))

    def add_sums(
        self, own: Sequence[npt.NDArray[Any]], sums: Sequence[npt.NDArray[Any]], part: float
    ) -> None:
        """Adds the norms of gradients that are sums over the workers, as `add` does of means.

        Args:
            own: this worker's terms of the sums: its gradients, times its part of the rows.
            sums: the gradients of all rows, of the same shapes.
            part: this worker's part of the rows, from 0 to 1.
        """
        own_before, self._own = self._own, 0.0
        self.add(own, sums, part)
        self._own = own_before + self._own / (part * part or 1.0)

    def take(self) -> tuple[float, float] | None:
        """Returns the squared norms of the step that has ended: this worker's and the mean's.

        Returns None if they were not measured, or are not finite.
        """
        self._bytes = self._seen or self._bytes
        found = self._own, self._mean
        self._measures = False
        return found if all(0 < square < math.inf for square in found) else None


def _square(array: npt.NDArray[Any]) -> float:
    if array.dtype.name not in ("float32", "float64"):
        array = array.astype("float32")
    flat = array.reshape(-1)
    return float(flat.dot(flat))
