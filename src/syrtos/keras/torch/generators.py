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

_STEPS, _NOW = "torch steps", "torch generator"
# The number of steps follows.
_AFTER, _BEGINS = "torch generator after ", "torch generator of the epoch after "
# A state has 5 kB. Data that is augmented by draws of this process needs one a step.
_MOST_STATES = 2000


class DrawingSteps:
    """The draws of a session's training steps, and of callbacks, from torch's own generator.

    A `fit` that is resumed draws its data again, and leaves out its steps and callbacks. Where these
    have drawn, and data draws from the same generator, the state is kept from which data has drawn,
    and put back there.

    Attributes:
        steps: the number of steps, of those that were left out too.
    """

    def __init__(self, _session: Session) -> None:
        self.steps = 0
        self._draws = False  # whether a step or a callback has drawn
        self._after: torch.Tensor | None = None  # the last step, and its callbacks
        # between epochs: when the last one was computed, before its last callbacks
        self._computed: torch.Tensor | None = None
        # by the number of steps: after a step, and when an epoch begins
        self._kept: dict[str, torch.Tensor] = {}
        self._to_come: dict[str, torch.Tensor] = {}

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Context manager of a training step."""
        before = generator_state()
        if self._draws and self._after is not None and not torch.equal(before, self._after):
            self._kept[f"{_AFTER}{self.steps}"] = self._after
        yield
        self.steps, self._after = self.steps + 1, generator_state()
        self._draws = self._draws or not torch.equal(before, self._after)

    def callbacks_ended(self) -> None:
        """Notes the state after a step's callbacks, from which data goes on."""
        before, self._after = self._after, generator_state()
        self._draws = self._draws or (before is not None and not torch.equal(before, self._after))

    def epoch_computed(self) -> None:
        """Notes the state after an epoch and its evaluation, whose data is drawn again too."""
        self._computed = generator_state()

    def epoch_begins(self) -> None:
        """Keeps the state from which an epoch's data begins, if callbacks have drawn before it."""
        if self._callbacks_have_drawn():
            self._kept[f"{_BEGINS}{self.steps}"] = generator_state()
        self._computed = None

    def _callbacks_have_drawn(self) -> bool:
        """Returns whether callbacks between epochs have drawn, and notes it."""
        before = self._computed
        found = before is not None and not torch.equal(before, generator_state())
        self._draws = self._draws or found
        return found

    def skip(self) -> None:
        """Leaves out a training step: what follows draws as it did after the step."""
        self.steps += 1
        self._restore(f"{_AFTER}{self.steps}")

    def skip_callbacks(self) -> None:
        """Leaves out the callbacks between epochs: what follows draws as it did after them."""
        self._restore(f"{_BEGINS}{self.steps}")

    def _restore(self, name: str) -> None:
        if (found := self._to_come.get(name)) is not None:
            self._kept[name] = found
            set_generator_state(found)

    def arrays(self) -> dict[str, Array]:
        """Returns what `begin` and `put_back` take, as it is now.

        Raises:
            SnapshotError: it is too much.
        """
        if len(self._kept) > _MOST_STATES:
            raise SnapshotError(
                "Data is drawn from torch's own generator between steps that draw from it too, e.g."
                " for augmentation. Give the data a `torch.Generator` of its own."
            )
        found = {_STEPS: np.asarray([self.steps], np.int64)}
        if self._callbacks_have_drawn() or self._draws:
            found[_NOW] = generator_state().numpy()
            found |= {name: kept.numpy() for name, kept in self._kept.items()}
        return found

    def begin(self, arrays: dict[str, Array]) -> None:
        """Begins to leave out steps, with the states of the generator after them."""
        names = (name for name in arrays if name.startswith((_AFTER, _BEGINS)))
        self._to_come = {name: _tensor(arrays[name]) for name in names}

    def put_back(self, arrays: dict[str, Array]) -> None:
        """Continues after the last step that was left out."""
        if _STEPS in arrays:
            self.steps = int(arrays[_STEPS].view(np.int64)[0])
        if _NOW in arrays:
            self._draws, self._after = True, _tensor(arrays[_NOW])
            set_generator_state(self._after)
            self.epoch_computed()  # where training goes on with the end of an epoch


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
