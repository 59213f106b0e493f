"""Random numbers of a script that sets no seed.

They are equal on all workers, or differ where each worker draws batches of its own.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import os
import random
import sys
import sysconfig
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from syrtos import settings
from syrtos.given_seeds import GivenSeeds
from syrtos.own_packages import FOLDERS

if TYPE_CHECKING:
    from syrtos.comm.communicator import Communicator


# The folders of Python, of installed packages, and of syrtos.
_PYTHON = sysconfig.get_path("stdlib")
_PACKAGES = (sysconfig.get_path("platlib"), sysconfig.get_path("purelib"))
_REWRITTEN = "__autograph_generated_file"
_OTHERS = (_PYTHON, *_PACKAGES, *FOLDERS, "<frozen ")


class _Drawn:
    """The state of this process's random numbers."""

    def __init__(self) -> None:
        self.by_script: set[str] = set()
        self.rank: int | None = None  # where workers draw apart
        # Of seeds, for each line that asked for them.
        self.numbers: dict[str, Iterator[int]] = {}
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
        self.numbers, self.names = {}, itertools.count()


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
    the same. Generators that are made later without a seed begin alike as well. The script's
    `uuid.uuid4` gives the same on all workers too, as files and folders are named by it; another
    run, in another folder, draws others.
    """
    import numpy as np
    from numpy.random import bit_generator

    given = settings.environment().get(settings.SEED_VARIABLE)
    seed = comm.broadcast_object(int(given) if given else random.SystemRandom().randrange(2**31))
    random.seed(seed)
    np.random.seed(seed)
    settings.set_environment({settings.SEED_VARIABLE: str(seed)})
    os.register_at_fork(before=_drawn.about_to_fork, after_in_child=_drawn.begin_child_series)
    random.seed = _common_unless_given("random", random.seed)
    np.random.seed = _common_unless_given("numpy", np.random.seed)
    np.random.default_rng = _common_unless_given("", np.random.default_rng)
    random.Random.seed = _common_unless_given("", random.Random.seed)
    # NumPy's bit generators, and `RandomState`, take their entropy from here (NumPy 1.26 to 2.5).
    numpys: Any = bit_generator
    numpys.randbits = _common_bits(numpys.randbits)
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

    All workers then take the same seed, unless Python's own library asks, which names temporary
    files by it. A method's first argument is its object.
    """
    from syrtos.comm import world

    is_method = inspect.isfunction(original)

    @functools.wraps(original)
    def seed(*args: Any, **kwargs: Any) -> Any:
        own, given = args[:is_method], args[is_method:]
        if all(value is None for value in (*given, *kwargs.values())):
            # None where it is to be fresh entropy.
            return original(*own, _next_seed())
        _drawn.note_seed(name)
        line, text = _line(_frame_of_script(sys._getframe(1))), _text_of([given, kwargs])
        if line and text:
            world.part(GivenSeeds).note(line, text)
        return original(*args, **kwargs)

    return seed


def _text_of(seed: Any) -> str:
    """Returns numbers and words as a text; empty for other objects, whose texts may differ."""
    if isinstance(seed, Mapping):
        seed = sorted(seed.items())
    if isinstance(seed, list | tuple):
        texts = [_text_of(part) for part in seed]
        return repr(texts) if all(texts) else ""
    if hasattr(seed, "tolist"):
        return _text_of(seed.tolist())
    is_plain = seed is None or isinstance(seed, int | float | str | bytes | bytearray)
    return repr(seed) if is_plain else ""


def _common_bits(original: Callable[[int], int]) -> Callable[[int], int]:
    """Wraps `secrets.randbits`, as NumPy calls it: all workers draw the same bits."""

    def randbits(count: int) -> int:
        seed = _next_seed()
        if seed is None:
            return original(count)
        digest = hashlib.shake_256(str(seed).encode()).digest(count // 8 + 1)
        return int.from_bytes(digest, "little") % 2**count

    return randbits


def _next_seed() -> int | None:
    """Returns the next of a series of seeds, the same on all workers unless they draw apart.

    None if a part of Python's own library asks, from outside of the caller's module.
    """
    # The frames of this function and of the wrapper that calls it are left out.
    asking: FrameType | None = sys._getframe(2)
    while asking is not None and asking.f_code.co_filename == random.__file__:
        asking = asking.f_back
    if asking is None or _is_pythons(asking.f_code.co_filename):
        return None
    # A series for each line: another line may be run by one worker alone.
    asked_at = f"{_line(asking)} {_line(_frame_of_script(asking))}"
    number = next(_drawn.numbers.setdefault(asked_at, itertools.count()))
    words = (settings.common_seed(), _drawn.rank, _drawn.line, asked_at, number)
    return zlib.crc32(repr(words).encode())


def _is_pythons(file: str) -> bool:
    return file.startswith(_PYTHON) and not file.startswith(_PACKAGES)


def _frame_of_script(frame: FrameType | None) -> FrameType | None:
    """Returns the innermost frame of the script's own files, from a frame outwards."""
    while frame is not None and os.path.abspath(frame.f_code.co_filename).startswith(_OTHERS):
        frame = frame.f_back
    return frame


def _line(frame: FrameType | None) -> str:
    if frame is None:
        return ""
    name = os.path.basename(frame.f_code.co_filename)
    # TensorFlow writes a traced function to a temporary file, of another name on each worker.
    return f"{'' if name.startswith(_REWRITTEN) else name}:{frame.f_lineno}"


def _common_to_script(original: Callable[[], uuid.UUID], run_dir: str) -> Callable[[], uuid.UUID]:
    """Wraps `uuid.uuid4`: calls from the script's own files give the same on all workers.

    Packages that name something of a worker by it, as a connection, get their own.
    """

    @functools.wraps(original)
    def uuid4() -> uuid.UUID:
        caller = sys._getframe(1)
        if _drawn.rank is not None or _frame_of_script(caller) is not caller:
            return original()
        words = (settings.common_seed(), run_dir, _drawn.line, next(_drawn.names))
        digest = hashlib.sha256(repr(words).encode()).digest()
        return uuid.UUID(bytes=digest[:16], version=4)

    return uuid4
