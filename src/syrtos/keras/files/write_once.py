"""Files are written once, complete or not at all, and read when they are complete.

A worker that writes a file takes its lock at once; one that comes to write the same file meanwhile
waits for the lock, finds that the file has been written, and goes on. Locks end with the process
that holds them, and a script may save on one rank or on all, in `fit` or outside. Calls belong
together if they name the same path, and lie between the same two exchanges.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import inspect
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, Concatenate

from syrtos import settings
from syrtos.comm import world
from syrtos.keras import backend
from syrtos.keras.files import atomic, claims, temporary
from syrtos.keras.protocols import P, R
from syrtos.scopes import set_within

if TYPE_CHECKING:
    from syrtos.keras.protocols import Model

    # The method `save` of a model.
    _Save = Callable[Concatenate[Model, str | os.PathLike[str], P], object]

# A wrapper of a function whose work one worker does: on the others it may return None.
Wrapper = Callable[[Callable[P, R]], Callable[P, R | None]]

# What tells one call of `get_file` from another: equal on all workers, unlike objects among the
# other arguments.
_OF_A_FETCH = ("origin", "fname", "cache_dir", "cache_subdir")
# Seconds for which workers wait for each other before they write: the others may be waiting for
# this one's file in their own way.
_PATIENCE = 10.0


# Whether this thread writes a file for all: calls inside a writing function are part of it.
_busy: ContextVar[bool] = ContextVar("busy", default=False)


class _Calls(threading.local):
    """The calls of a thread: by key, after which exchange it was last written, and how often since."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[int, int]] = {}

    def number(self, key: str, meetings: int) -> int:
        """Counts a call for ``key``, and returns how many there were since the last exchange."""
        last, count = self.calls.get(key, (meetings, 0))
        self.calls[key] = (meetings, count + 1 if last == meetings else 1)
        return self.calls[key][1]


_calls = _Calls()


# -- wrappers of functions that write, or read -----------------------------------------------------


def writing(argument: str, complete: bool = True) -> Wrapper[P, R]:
    """Makes a function write its file or folder once for all workers.

    Args:
        argument: the path's name among the function's arguments. Objects in memory and addresses of
            stores are left to the function.
        complete: whether the file is to appear complete or not at all.
    """

    def wrapper(original: Callable[P, R]) -> Callable[P, R | None]:
        signature = inspect.signature(original)
        original_bound: Callable[..., R] = (
            original  # which is called with arguments of its signature
        )

        @functools.wraps(original)
        def write(*args: P.args, **kwargs: P.kwargs) -> R | None:
            given = signature.bind(*args, **kwargs)
            # One of the defaults may name the file.
            given.apply_defaults()
            path = atomic.local(given.arguments.get(argument))

            def write_to(place: str) -> R:
                given.arguments[argument] = place
                return original_bound(*given.args, **given.kwargs)

            if path is None:
                return original(*args, **kwargs)
            if (instead := _instead(path)) is not None:
                os.makedirs(os.path.dirname(instead), exist_ok=True)
                path = instead
            # Keras asks at the terminal before it overwrites, by the path that it is given.
            asks = given.arguments.get("overwrite") is False and os.path.exists(path)
            if asks or not complete:
                return once(path, lambda: write_to(path))
            return once(path, lambda: atomic.write(path, write_to))

        return write

    return wrapper


def reading(argument: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function wait until a file is complete.

    Another worker is writing the file, or is about to write it.
    """

    def wrapper(original: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(original)
        original_bound: Callable[..., R] = (
            original  # which is called with arguments of its signature
        )

        @functools.wraps(original)
        def read(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                given = signature.bind(*args, **kwargs)
            # The original says what is wrong with the arguments.
            except TypeError:
                return original(*args, **kwargs)
            path = atomic.local(given.arguments.get(argument))
            if path is not None:
                instead = _instead(path)
                await_complete(instead or path)
                if instead and glob.glob(glob.escape(instead) + "*"):
                    given.arguments[argument] = instead
            return original_bound(*given.args, **given.kwargs)

        return read

    return wrapper


def fetching(original: Callable[P, R]) -> Callable[P, R | None]:
    """Makes one worker of a host fetch a file while the others wait.

    This is done also where the script says itself what is exchanged.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fetch(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            given = signature.bind(*args, **kwargs).arguments
        # The original says what is wrong with the arguments.
        except TypeError:
            return original(*args, **kwargs)
        digest = hashlib.sha256(
            repr([str(given.get(part)) for part in _OF_A_FETCH]).encode()
        ).hexdigest()
        # A hash, since an address can hold a password, and errors show the name.
        name = f"{given.get('fname') or 'file'} {digest[:12]}"
        return once(name, lambda: original(*args, **kwargs), fetched=True)

    return fetch


def _instead(path: str) -> str | None:
    """Returns the path to which `syrtos verify` saves a model in place of ``path``.

    Returns None in other runs. A model that was trained on two batches must not replace the user's.
    """
    if not world.is_initialized() or temporary.is_own(path):
        return None
    options = world.current().options
    if not options.verifies or not options.run_dir:
        return None
    return str(Path(options.run_dir, "saved", os.path.relpath(os.path.realpath(path), "/")))


class CompleteFiles:
    """Keras's `file_utils`, with files that appear complete when they are written as a whole.

    Where each worker holds parts of variables, callbacks that save run on all workers, which gather
    them together: rank 0 alone changes files and folders then.
    """

    def __init__(self, original: ModuleType) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._original, name)
        return _by_the_writer(function) if name in _CHANGING else function

    @contextlib.contextmanager
    def File(self, path: object, mode: str = "r") -> Iterator[IO[str]]:
        """Opens a file in text mode."""
        place = atomic.local(path)
        if place is None or mode != "w":
            with self._original.File(path, mode) as file:
                yield file
            return
        text = io.StringIO()
        yield text
        if _only_gathers(place):
            return
        atomic.write(
            place, lambda beside: Path(beside).write_text(text.getvalue(), encoding="utf-8")
        )


# The functions of `file_utils` that change files and folders.
_CHANGING = {"makedirs", "copy", "remove", "rmtree"}


def _only_gathers(path: object) -> bool:
    """Returns whether this worker runs a saving callback only to help gather what is saved."""
    joins = world.is_initialized() and world.sharing().world.rank > 0 and backend.is_chosen()
    return joins and backend.active().splits_variables() and not temporary.is_own(path)


def _by_the_writer(function: Callable[P, R]) -> Callable[P, R | None]:
    @functools.wraps(function)
    def change(*paths: P.args, **kwargs: P.kwargs) -> R | None:
        return None if _only_gathers(paths[-1]) else function(*paths, **kwargs)

    return change


def as_saved_model(export: Callable[..., object]) -> Callable[[_Save[P]], _Save[P]]:
    """Makes `save` to a folder for models write a SavedModel in a training job."""

    def wrapper(original: _Save[P]) -> _Save[P]:
        # Keras 2 did so, and scripts for SageMaker expect it.
        @functools.wraps(original)
        def save(
            self: Model, filepath: str | os.PathLike[str], *args: P.args, **kwargs: P.kwargs
        ) -> object:
            models = settings.environment().get("SM_MODEL_DIR")
            inside = (
                models
                and isinstance(filepath, (str, os.PathLike))
                and Path(filepath).is_relative_to(models)
            )
            if not inside or Path(filepath).suffix:
                return original(self, filepath, *args, **kwargs)
            print(
                f"syrtos: {filepath} is a folder: the model is exported there as a SavedModel"
                " (Keras 3 saves to .keras files)"
            )
            return export(self, os.fspath(filepath))

        return save

    return wrapper


# -- once for all workers --------------------------------------------------------------------------


def once(name: str, work: Callable[[], R], fetched: bool = False) -> R | None:
    """Does ``work`` on one worker while the others wait.

    The worker is rank 0, unless it comes much later than others.

    Args:
        name: the path that is written, or with ``fetched`` another name of the work.
        work: the function that does it.
        fetched: whether one worker of each host does it, and all get its result, a path.

    Returns:
        The result of the work; None on workers that did not do it, unless ``fetched``.

    Raises:
        Exception: what the work raised, on all workers; SyrtosError where its type can't be made
            anew.
    """
    if _busy.get() or not world.is_initialized():
        return work()
    session = world.current() if fetched else world.sharing()
    alone = session.world.size == 1 and not session.options.asynchronous
    with session.ledger.span("input" if fetched else "checkpoint"):
        if alone or not world.current().options.run_dir:
            return work()
        with _holding_claim(name if fetched else os.path.realpath(name), session, fetched) as claim:
            return claim.settle(work)


@contextlib.contextmanager
def _holding_claim(key: str, session: world.Session, fetched: bool) -> Iterator[claims.Claim]:
    """Context manager: takes the claim on a key, and holds it.

    Rank 0 (of each host, for a fetch) takes it when it comes. Ranks that come earlier wait for
    that, but not for ever: any worker may be the one that writes.
    """
    meetings, meets = _meetings(session), _meets(session)
    first = (session.world.local_rank if fetched else session.world.rank) == 0
    turn = claims.Turn(f"fetches {session.world.node_rank}" if fetched else "writes")
    mine = meetings, _calls.number(turn.name, meetings)
    claim = claims.Claim(
        f"{key} {session.world.node_rank}" if fetched else key,
        f"{meetings} {_calls.number(key, meetings)}",
        fetched,
    )
    if meets and not session.rank_aware:
        call = f"{'fetch' if fetched else 'write'} {key}, number {mine[1]}"
        if not first:
            _let_the_first_begin(turn, mine, call, session)
        elif mine[1] > 1 and not fetched:
            _let_the_others_come(call, session)
    with claim.holding():
        if meets and first:
            turn.tell(mine)
        with set_within(_busy, True):
            yield claim


def _let_the_first_begin(
    turn: claims.Turn, mine: tuple[int, int], call: str, session: world.Session
) -> None:
    """Waits until the first worker has begun the same turn or is at its next exchange.

    The wait also ends once this worker has waited long enough, as `_late` says.
    """
    late = _late(session)
    over = claims.now_and_then(lambda: turn.begun(mine) or late())
    if not over():
        session.comm.pass_by(call, until=over)


def _let_the_others_come(call: str, session: world.Session) -> None:
    """Waits until the other workers come to the same file or are past it, or until it is late.

    They may still have to read what the first worker has written since the last exchange, before it
    writes again.
    """
    late, moving, again = _late(session), True, False
    while moving and not late():
        moving, again = session.comm.pass_by(call, again, late), True


def _late(session: world.Session) -> Callable[[], bool]:
    """Returns a function that says whether this worker has waited long enough from now on."""
    limit = time.monotonic() + min(_PATIENCE, session.watchdog.timeout / 2)
    return lambda: time.monotonic() > limit


def _meets(session: world.Session) -> bool:
    """Returns whether this worker may wait for the others here.

    It may not in another thread than the main one, nor where each worker trains at its own pace.
    """
    return (
        session is world.current()
        and session.comm.size > 1
        and threading.current_thread() is threading.main_thread()
    )


def _meetings(session: world.Session) -> int:
    """Returns how often the workers have met.

    The number is equal on all of them at the same place of the script. It is 0 where a script meets
    as it likes.
    """
    if world.explicit():
        return 0
    # What is exchanged in the background counts too.
    session.comm.background.settle()
    if session.servers and session.options.asynchronous:
        return session.servers.rounds
    return session.comm.meetings


# -- waiting before reading ------------------------------------------------------------------------


def await_complete(path: str) -> None:
    """Waits until a file is complete that another worker is writing, or is about to write."""
    if not _busy.get():
        _await_writer(path)
        for _ in _while_others_may_write(
            lambda: os.path.exists(claims.landmark(path)), f"read {path}"
        ):
            _await_writer(path)
    atomic.settle(path)


def _await_writer(path: str) -> None:
    if world.is_initialized() and world.current().options.run_dir:
        claims.await_holder(os.path.realpath(path))


def _while_others_may_write(exists: Callable[[], bool], call: str) -> Iterator[None]:
    """Yields now, and again whenever the other workers have done more, until the file exists.

    It also ends once the file can't come any more: each of the others is then at its next exchange
    or waits likewise.
    """
    yield
    moving, again = world.is_initialized() and not _busy.get() and _meets(world.sharing()), False
    while moving and not exists():
        moving = world.sharing().comm.pass_by(call, again, exists)
        again = True
        yield
