"""Sends gradients while `backward` still makes others.

After Li et al., "PyTorch Distributed", arXiv 2006.15704, section 3.2.3: a bucket is sent when its
last gradient has been accumulated, and buckets are sent in one order on all workers, that of
`ops.buckets`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

import torch

from syrtos.comm.communicator import Communicator
from syrtos.keras.torch import ops
from syrtos.keras.trainer import timing

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class _Sent(NamedTuple):
    """A bucket of gradients on its way, with the versions that they had when it was sent."""

    gradients: list[torch.Tensor]
    versions: list[int]
    averages: Future[Callable[[], list[torch.Tensor]]]


class Overlap:
    """The gradients of one `backward`, for an optimizer of Keras's own."""

    def __init__(
        self, comm: Communicator, variables: Sequence[torch.Tensor], weight: float
    ) -> None:
        """
        Args:
            comm: the workers.
            variables: leaves of the graph, equal on all workers but for their values.
            weight: the weight of this worker's gradients in the mean.
        """
        self._comm, self._weight = comm, weight
        self._plan = [[variables[i] for i in bucket] for bucket in ops.buckets(variables)]
        self._bucket_of = {
            id(variable): i for i, bucket in enumerate(self._plan) for variable in bucket
        }
        self._awaited = [len(bucket) for bucket in self._plan]
        self._sent: list[_Sent] = []
        # `backward` has a thread for each device.
        self._lock = threading.Lock()
        self._hooks: list[RemovableHandle] = []

    def open(self) -> None:
        """Sends gradients as they are made, from now on."""
        # A single bucket is complete when `backward` ends, which leaves nothing to overlap.
        for bucket in self._plan if len(self._plan) > 1 else ():
            self._hooks += [
                variable.register_post_accumulate_grad_hook(self._note_gradient)
                for variable in bucket
            ]

    def close(self) -> None:
        """Ends the step: gradients that are still on their way are of no use.

        They arrive before anything else is exchanged.
        """
        for hook in self._hooks:
            hook.remove()
        self._sent.clear()

    def _note_gradient(self, variable: torch.Tensor) -> None:
        with self._lock:
            self._awaited[self._bucket_of[id(variable)]] -= 1
            # A later bucket may be complete first: buckets are sent in one order on all workers.
            while len(self._sent) < len(self._plan) and self._awaited[len(self._sent)] == 0:
                self._send(self._plan[len(self._sent)])

    def _send(self, bucket: Sequence[torch.Tensor]) -> None:
        variables = [variable for variable in bucket if variable.grad is not None]
        gradients = [variable.grad for variable in variables if variable.grad is not None]
        # The background thread has a stream of its own, on which these gradients need not be
        # complete.
        stream = torch.cuda.current_stream(gradients[0].device) if gradients[0].is_cuda else None

        def exchange() -> Callable[[], list[torch.Tensor]]:
            with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
                # The averages are lent: no optimizer of Keras's own writes to its gradients (seen
                # in 3.15.1).
                return ops.begin_weighted_mean(
                    self._comm, gradients, self._weight, lend=True, variables=variables
                )

        averages = self._comm.background.submit(exchange)
        # Versions count writes: what is changed after it was sent is exchanged again.
        self._sent.append(_Sent(gradients, [gradient._version for gradient in gradients], averages))

    def finish(
        self, gradients: list[torch.Tensor], variables: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Returns the averages of all workers, in the order of ``variables``.

        Gradients that were not sent, or were changed since, are exchanged now.

        Raises:
            OutOfStepError: another worker exchanges other gradients now.
        """
        if not self._sent:
            return ops.weighted_mean(
                self._comm, gradients, self._weight, lend=True, variables=variables
            )
        with timing.exchanging():
            self._comm.background.settle()
            averages = {
                id(gradient): average
                for sent in self._sent
                for gradient, version, average in zip(
                    sent.gradients, sent.versions, sent.averages.result()(), strict=True
                )
                if gradient._version == version
            }
            others = [i for i, gradient in enumerate(gradients) if id(gradient) not in averages]
            # Else workers on which others were changed would average unlike gradients with each
            # other.
            self._comm.agree(f"gradients that are sent after `backward`: {others}")
        late = ops.weighted_mean(
            self._comm,
            [gradients[i] for i in others],
            self._weight,
            lend=True,
            variables=[variables[i] for i in others],
        )
        averages |= {id(gradients[i]): average for i, average in zip(others, late, strict=True)}
        return [averages[id(gradient)] for gradient in gradients]
