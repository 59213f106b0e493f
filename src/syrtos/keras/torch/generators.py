"""Torch's own random generators in steps.

In a step that workers compute together every worker draws what one process draws. In a step that a
worker makes alone it draws other numbers than the others.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import torch

from syrtos.comm import world
from syrtos.comm.communicator import Array
from syrtos.comm.world import Session
from syrtos.errors import SnapshotError
from syrtos.keras.split.shares import SEED_STRIDE

_STEPS, _NOW, _AFTER = "torch steps", "torch generator", "torch generator after "
# A state has 5 kB. Data that is augmented by draws of this process needs one a step.
_MOST_STATES = 2000


class DrawingSteps:
    """The draws of a session's training steps from torch's own generator.

    A `fit` that is resumed draws its data again, and leaves out its steps. Data may be drawn from
    the generator that steps draw from: where it was, the state before is kept, and put back there.

    Attributes:
        steps: their number, of those that were left out too.
    """

    def __init__(self, _session: Session) -> None:
        self.steps = 0
        self._draws = False
        self._after: torch.Tensor | None = None
        self._kept: dict[int, torch.Tensor] = {}
        self._to_come: dict[int, torch.Tensor] = {}

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Context manager of a training step."""
        before = generator_state()
        if self._draws and self._after is not None and not torch.equal(before, self._after):
            self._kept[self.steps] = self._after
        yield
        self.steps, self._after = self.steps + 1, generator_state()
        self._draws = self._draws or not torch.equal(before, self._after)

    def note_now(self) -> None:
        """Notes the generator's state, from which the data goes on: callbacks may have drawn too."""
        if self._draws:
            self._after = generator_state()

    def skip(self) -> None:
        """Leaves out a training step: what follows draws as it did after the step."""
        self.steps += 1
        if (found := self._to_come.get(self.steps)) is not None:
            self._kept[self.steps] = found
            set_generator_state(found)

    def arrays(self) -> dict[str, Array]:
        """Returns what `begin` and `put_back` take, as it is now.

        Raises:
            SnapshotError: it is too much.
        """
        self.note_now()
        if len(self._kept) > _MOST_STATES:
            raise SnapshotError(
                "Data is drawn from torch's own generator between steps that draw from it too, e.g."
                " for augmentation. Give the data a `torch.Generator` of its own."
            )
        found = {_STEPS: np.asarray([self.steps], np.int64)}
        if self._draws and self._after is not None:
            found[_NOW] = self._after.numpy()
            found |= {f"{_AFTER}{step}": kept.numpy() for step, kept in self._kept.items()}
        return found

    def begin(self, arrays: dict[str, Array]) -> None:
        """Begins to leave out steps, with the states of the generator after them."""
        names = [name for name in arrays if name.startswith(_AFTER)]
        self._to_come = {int(name.removeprefix(_AFTER)): _tensor(arrays[name]) for name in names}

    def put_back(self, arrays: dict[str, Array]) -> None:
        """Continues after the last step that was left out."""
        if _STEPS in arrays:
            self.steps = int(arrays[_STEPS].view(np.int64)[0])
        if _NOW in arrays:
            self._draws, self._after = True, _tensor(arrays[_NOW])
            set_generator_state(self._after)


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.view(np.uint8).copy())


def generator_state() -> torch.Tensor:
    """Returns the state of torch's generators, of the processor and of the device in use."""
    mine = torch.get_rng_state()
    return torch.cat([mine, torch.cuda.get_rng_state()]) if torch.cuda.is_initialized() else mine


def set_generator_state(state: torch.Tensor) -> None:
    count = len(torch.get_rng_state())
    torch.set_rng_state(state[:count])
    if len(state) > count and torch.cuda.is_available():
        torch.cuda.set_rng_state(state[count:])


@contextlib.contextmanager
def own_random_numbers(rank: int) -> Iterator[None]:
    """Makes torch's own generator give each worker and step other numbers, within the context.

    Dropout draws from it where it has no seed. Outside, the generator goes on as if nothing had
    been drawn.
    """
    # It shuffles data too, alike on all workers only as long as none has drawn more: hence the
    # fork.
    with _generators_forked() as seed_generators:
        # The state is the same in all steps as long as nothing is drawn outside of them: their
        # number tells them apart.
        count = world.part(DrawingSteps).steps
        common = zlib.crc32(torch.get_rng_state().numpy().data, count)
        seed_generators(common + rank * SEED_STRIDE)
        yield


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
