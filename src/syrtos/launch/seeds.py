"""Random numbers of a script that sets no seed: equal on all workers, or apart where each draws batches of its own."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from syrtos import settings

if TYPE_CHECKING:
    from syrtos.comm.communicator import Communicator

_by_script: set[str] = set()


def agree(comm: Communicator) -> None:
    """Seeds Python's and NumPy's generators alike on all workers, so that scripts build and shuffle alike; TensorFlow's follows."""
    import numpy as np

    seed = comm.broadcast_object(random.SystemRandom().randrange(2**31))
    random.seed(seed)
    np.random.seed(seed)
    settings.set_environment({"SYRTOS_SEED": str(seed)})
    random.seed = _noting("random", random.seed)
    np.random.seed = _noting("numpy", np.random.seed)


def common() -> int:
    """The seed that all workers began with."""
    return int(settings.environment().get("SYRTOS_SEED", "0"))


def part(rank: int) -> int:
    """Seeds Python's and NumPy's generators by rank, unless the script has seeded them; returns the seed."""
    import numpy as np

    seed = (common() + rank) % 2**31
    if "random" not in _by_script:
        random.seed(seed)
    if "numpy" not in _by_script:
        np.random.seed(seed)
    return seed


def _noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def seed(*args: Any, **kwargs: Any) -> Any:
        _by_script.add(name)
        return original(*args, **kwargs)

    return seed
