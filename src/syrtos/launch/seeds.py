"""Random numbers of a script that sets no seed.

They are equal on all workers, or differ where each worker draws batches of its own.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import random
import sys
import sysconfig
import uuid
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from syrtos import settings

if TYPE_CHECKING:
    from syrtos.comm.communicator import Communicator


# The folders of Python, of installed packages, and of syrtos.
_OTHERS = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")),
    str(Path(__file__).parents[1]),
)


class _Drawn:
    """The state of this process's random numbers."""

    def __init__(self) -> None:
        self.by_script: set[str] = set()
        self.rank: int | None = None  # where workers draw apart
        self.numbers = itertools.count()
        # this process's number among the children of its parent, and so on
        self.line: tuple[int, ...] = ()
        self.names = itertools.count()
        self._children = 0

    def draw_apart(self, rank: int) -> None:
        """Makes this worker draw other numbers than the others from now on."""
        self.rank = rank

    def note_seed(self, generator: str) -> None:
        """Notes that the script has given a generator a seed of its own."""
        self.by_script.add(generator)

    def about_to_fork(self) -> None:
        """Counts the children of this process."""
        # By its number a child draws other numbers than its parent and its siblings, and the same
        # as its counterpart on the other workers.
        self._children += 1

    def begin_child_series(self) -> None:
        """Begins a new series of seeds in a child that was forked."""
        self.line, self._children = (*self.line, self._children), 0
        self.numbers, self.names = itertools.count(), itertools.count()


_drawn = _Drawn()


def hash_alike(env: Mapping[str, str]) -> None:
    """Restarts this interpreter with the variable of `settings.hash_seed`, if it was not set."""
    # Our launcher sets the variable; something else that starts workers may not.
    missing = settings.hash_seed(env)
    if missing and sys.flags.hash_randomization and not sys.flags.ignore_environment:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**env, **missing})


def agree(comm: Communicator, run_dir: str) -> None:
    """Seeds Python's and NumPy's generators alike on all workers: scripts build and shuffle alike.

    TensorFlow's seed follows. The launcher may have given the seed: all generations of a run have
    the same. The script's `uuid.uuid4` gives the same on all workers too, as files and folders are
    named by it; another run, in another folder, draws others.
    """
    import numpy as np

    given = settings.environment().get(settings.SEED_VARIABLE)
    seed = comm.broadcast_object(int(given) if given else random.SystemRandom().randrange(2**31))
    random.seed(seed)
    np.random.seed(seed)
    settings.set_environment({settings.SEED_VARIABLE: str(seed)})
    os.register_at_fork(before=_drawn.about_to_fork, after_in_child=_drawn.begin_child_series)
    random.seed = _common_unless_given("random", random.seed)
    np.random.seed = _common_unless_given("numpy", np.random.seed)
    np.random.default_rng = _common_unless_given("", np.random.default_rng)
    uuid.uuid4 = _common_to_script(uuid.uuid4, run_dir)


def part(rank: int) -> int:
    """Seeds Python's and NumPy's generators by rank, unless the script has; returns the seed."""
    import numpy as np

    seed = (settings.common_seed() + rank) % 2**31
    _drawn.draw_apart(rank)
    if "random" not in _drawn.by_script:
        random.seed(seed)
    if "numpy" not in _drawn.by_script:
        np.random.seed(seed)
    return seed


def _common_unless_given(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function that takes fresh entropy where it is given no seed.

    All workers then take the same seed.
    """

    @functools.wraps(original)
    def seed(*args: Any, **kwargs: Any) -> Any:
        if all(value is None for value in (*args, *kwargs.values())):
            return original(_next_seed())
        _drawn.note_seed(name)
        return original(*args, **kwargs)

    return seed


def _common_to_script(original: Callable[[], uuid.UUID], run_dir: str) -> Callable[[], uuid.UUID]:
    """Wraps `uuid.uuid4`: calls from the script's own files give the same on all workers.

    Packages that name something of a worker by it, as a connection, get their own.
    """

    @functools.wraps(original)
    def uuid4() -> uuid.UUID:
        caller = sys._getframe(1).f_code.co_filename
        if _drawn.rank is not None or os.path.abspath(caller).startswith(_OTHERS):
            return original()
        words = (settings.common_seed(), run_dir, _drawn.line, next(_drawn.names))
        digest = hashlib.sha256(repr(words).encode()).digest()
        return uuid.UUID(bytes=digest[:16], version=4)

    return uuid4


def _next_seed() -> int:
    """Returns the next of a series of seeds, the same on all workers unless they draw apart."""
    words = (settings.common_seed(), _drawn.rank, _drawn.line, next(_drawn.numbers))
    return zlib.crc32(repr(words).encode())
