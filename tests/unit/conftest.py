"""What several rooms' tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from syrtos.comm import world
from syrtos.comm.inprocess import InProcessCommunicator

# A busy machine is no failure, and examples leave no folder behind.
hypothesis.settings.register_profile("unit", max_examples=50, deadline=None, database=None)
hypothesis.settings.load_profile("unit")

Together = Callable[..., list[Any]]


@pytest.fixture
def together() -> Together:
    """Calls a function with the communicator of each worker of a new world; the results in rank order."""

    def play(
        size: int, function: Callable[[InProcessCommunicator], Any], timeout: float = 10.0
    ) -> list[Any]:
        with ThreadPoolExecutor(size) as pool:
            futures = [
                pool.submit(function, comm) for comm in InProcessCommunicator.world(size, timeout)
            ]
            return [future.result() for future in futures]

    return play


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that exists."""
    path = tmp_path / "train.py"
    path.write_text("print('training')\n")
    return path


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has not joined a world, and that nothing started."""
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SYRTOS_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    before = world.adopt(None)
    yield
    world.adopt(before)
