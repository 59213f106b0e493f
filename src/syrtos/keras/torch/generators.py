"""Torch's own random generators within a step: other numbers on each worker, or the same on all."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator

import torch

from syrtos.comm import world
from syrtos.comm.world import Session
from syrtos.keras.split.shares import SEED_STRIDE


class DrawingSteps:
    """The number of steps of a session that have drawn random numbers of their own."""

    def __init__(self, _session: Session) -> None:
        self.steps = 0


@contextlib.contextmanager
def own_random_numbers(rank: int) -> Iterator[int]:
    """Makes torch's own generator give each worker and step other numbers, within the context.

    Dropout draws from it where it has no seed. Outside, the generator goes on as if nothing had
    been drawn. The context manager gives the seed of the step, which all workers have.
    """
    # It shuffles data too, alike on all workers only as long as none has drawn more: hence the
    # fork.
    with _generators_forked() as seed_generators:
        # The state is the same in all steps as long as nothing is drawn outside of them: their
        # number tells them apart.
        count = world.part(DrawingSteps)
        common = zlib.crc32(torch.get_rng_state().numpy().data, count.steps)
        count.steps += 1
        seed_generators(common + rank * SEED_STRIDE)
        yield common


@contextlib.contextmanager
def _generators_forked() -> Iterator[Callable[[int], None]]:
    """Context manager: torch's own generators are afterwards as before. It gives what seeds them."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []

    def seed_generators(seed: int) -> None:
        # Not `torch.manual_seed`, which formats a stack trace for each kind of accelerator that is
        # not in use: 0.25 ms.
        torch.default_generator.manual_seed(seed)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(seed)

    with torch.random.fork_rng(devices):
        yield seed_generators
