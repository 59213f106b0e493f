"""Files are written once, complete or not at all, and read when they are complete.

A worker that writes a file takes its lock; one that comes to write the same file meanwhile waits for the lock, finds that the file has
been written, and goes on. Locks end with the process that holds them, and a worker waits only for one that is writing: a script may
save on one rank or on all, in `fit` or outside. Which calls belong together: they name the same path, and lie between the same two
exchanges.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import functools
import hashlib
import inspect
import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from syrtos import settings
from syrtos.comm import world
from syrtos.errors import SyrtosError
from syrtos.keras import atomic, pace

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


class _Thread(threading.local):
    """What this thread is at, so that what a writing function calls is part of it.

    Attributes:
        busy: whether it writes a file for all.
        calls: by key, after which exchange it was last written, and how often since.
    """

    busy = False

    def __init__(self) -> None:
        self.calls: dict[str, tuple[int, int]] = {}

    def number(self, key: str, meetings: int) -> int:
        """Counts the calls for ``key`` since the last exchange."""
        last, count = self.calls.get(key, (meetings, 0))
        self.calls[key] = (meetings, count + 1 if last == meetings else 1)
        return self.calls[key][1]


_thread = _Thread()


# -- wrappers of functions that write, or read ------------------------------------------------------------


def writing(argument: str, complete: bool = True) -> Wrapper:
    """Makes a function write its file or folder once for all workers.

    Args:
        argument: the path's name among the function's arguments. Objects in memory and addresses of stores are left to the function.
        complete: the file appears complete or not at all.
    """

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def write(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            path = atomic.local(given.arguments.get(argument))

            def write_to(place: str) -> Any:
                given.arguments[argument] = place
                return original(*given.args, **given.kwargs)

            if path is None:
                return original(*args, **kwargs)
            asks = given.arguments.get("overwrite") is False and os.path.exists(path)
            if asks or not complete:
                return once(path, lambda: write_to(path))
            return once(path, lambda: atomic.write(path, write_to))

        return write

    return wrapper


def reading(argument: str) -> Wrapper:
    """Makes a function wait until a file is complete that another worker is writing, or is about to write."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def read(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(TypeError):  # the original says what is wrong with the arguments
                path = atomic.local(signature.bind(*args, **kwargs).arguments.get(argument))
                if path is not None:
                    _await(path)
            return original(*args, **kwargs)

        return read

    return wrapper


def checkpointing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around what writes the data and index of a checkpoint. Graphs write by themselves, when they run."""

    @functools.wraps(original)
    def save(
        self: Any, file_prefix: Any, checkpoint_number: Any = None, session: Any = None, options: Any = None
    ) -> Any:
        path = atomic.local(file_prefix)
        if path is None or not tf.executing_eagerly():
            return original(self, file_prefix, checkpoint_number, session, options)
        path = f"{path}-{int(checkpoint_number)}" if checkpoint_number else path
        once(path, lambda: atomic.write(path, lambda place: original(self, place, None, session, options)))
        return tf.constant(path)

    return save


def latest(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around `tf.train.latest_checkpoint`: before it answers that there is none, another worker may write one."""

    @functools.wraps(original)
    def latest_checkpoint(checkpoint_dir: Any, latest_filename: str | None = None) -> str | None:
        result = original(checkpoint_dir, latest_filename)
        folder = atomic.local(checkpoint_dir)
        if result is None and folder is not None:
            _await(os.path.join(folder, latest_filename or "checkpoint"))
            result = original(checkpoint_dir, latest_filename)
        return result

    return latest_checkpoint


def fetching(original: Callable[..., Any]) -> Callable[..., Any]:
    """One worker of a host fetches a file, and the others wait: also where the script says itself what is exchanged."""

    @functools.wraps(original)
    def fetch(*args: Any, **kwargs: Any) -> Any:
        return once(repr((args, kwargs)), lambda: original(*args, **kwargs), fetched=True)

    return fetch


def writer(original: Callable[..., Any]) -> Callable[..., Any]:
    """One worker gets the writer of summaries that it asks for, and the others one that writes nothing."""

    @functools.wraps(original)
    def create_file_writer(logdir: Any, *args: Any, **kwargs: Any) -> Any:
        path, made = atomic.local(logdir), []
        if path is None:
            return original(logdir, *args, **kwargs)
        once(f"{path} summaries", lambda: made.append(original(logdir, *args, **kwargs)))
        return made[0] if made else tf.summary.create_noop_writer()

    return create_file_writer


class CompleteFiles:
    """Keras's `file_utils`, with files that appear complete when they are written as a whole."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    @contextlib.contextmanager
    def File(self, path: Any, mode: str = "r") -> Iterator[Any]:
        """Opens a file in text mode."""
        place = atomic.local(path)
        if place is None or mode != "w":
            with self._original.File(path, mode) as file:
                yield file
            return
        text = io.StringIO()
        yield text
        atomic.write(place, lambda beside: Path(beside).write_text(text.getvalue(), encoding="utf-8"))


def as_saved_model(export: Callable[..., Any]) -> Wrapper:
    """In a training job `save` to a folder for models writes a SavedModel, as Keras 2 did and scripts for SageMaker expect."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
            models = settings.environment().get("SM_MODEL_DIR")
            inside = models and isinstance(filepath, (str, os.PathLike)) and Path(filepath).is_relative_to(models)
            if not inside or Path(filepath).suffix:
                return original(self, filepath, *args, **kwargs)
            print(
                f"syrtos: {filepath} is a folder: the model is exported there as a SavedModel (Keras 3 saves to .keras files)"
            )
            return export(self, os.fspath(filepath))

        return save

    return wrapper


# -- once for all workers ----------------------------------------------------------------------------------


def once(name: str, work: Callable[[], Any], fetched: bool = False) -> Any:
    """Does ``work`` on one worker, rank 0 if all come together, while the others wait.

    Args:
        name: the path that is written, or another name of the work.
        work: what is to be done.
        fetched: one worker of each host does it, and all get its result, a path.

    Returns:
        What the work returned; None on workers that did not do it, unless ``fetched``.

    Raises:
        Exception: what the work raised, on all workers; SyrtosError where its type can't be made anew.
    """
    if _thread.busy or not world.joined():
        return work()
    session = world.current() if fetched else world.sharing()
    alone = session.world.size == 1 and not pace.own()
    with session.ledger.span("input" if fetched else "checkpoint"):
        if alone or not world.current().options.run_dir:
            return work()
        with _claimed(os.path.realpath(name), session, fetched) as claim:
            return claim.settle(work)


@contextlib.contextmanager
def _claimed(key: str, session: world.Session, fetched: bool) -> Iterator[_Claim]:
    """The claim on a key, held. Where all workers come together, rank 0 (of each host) takes it first."""
    first = (session.world.local_rank if fetched else session.world.rank) == 0
    together = _meets(session) and not session.rank_aware and session.comm.pass_by(f"write {key}")[0]
    if together and not first:
        session.comm.pass_by(f"rank 0 writes {key}")
    claim = _Claim(f"{key} {session.world.node_rank}" if fetched else key, _meetings(session), fetched)
    with claim.held():
        if together and first:
            session.comm.pass_by(f"rank 0 writes {key}")
        try:
            _thread.busy = True
            yield claim
        finally:
            _thread.busy = False


def _meets(session: world.Session) -> bool:
    """Whether this worker may wait for the others here: not in another thread, and not where each trains at its own pace."""
    return (
        session is world.current() and session.comm.size > 1 and threading.current_thread() is threading.main_thread()
    )


def _meetings(session: world.Session) -> int:
    """How often the workers have met: equal on all of them at the same place of the script. 0 where a script meets as it likes."""
    if world.explicit():
        return 0
    servers = pace.own()
    return servers.rounds if servers else session.comm.meetings


class _Claim:
    """What the workers know about the writing of one file, in a file that one of them holds at a time."""

    def __init__(self, key: str, meetings: int, fetched: bool) -> None:
        self._path, self._meetings, self._fetched = _claim_path(key), meetings, fetched
        self._key, self._call = key, f"{meetings} {_thread.number(key, meetings)}"
        self._file: Any = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Waits until no other worker holds it. The end of a process ends its hold."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a+", encoding="utf-8") as self._file:
            with contextlib.suppress(
                OSError
            ):  # a file system without locks: workers write at once, each a file of its own
                fcntl.flock(self._file, fcntl.LOCK_EX)
            yield

    def settle(self, work: Callable[[], Any]) -> Any:
        """Does the work, or takes what another worker wrote down about it; does it again if that file is on another host's disk."""
        known = self._read()
        done = known.get(self._call)
        if done and done["error"]:
            raise _again(done["error"])
        if done and any(self._mark(done["result"]) in other["marks"] for other in known.values()):
            return done["result"]
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        marks = [*(done["marks"] if done else []), self._mark(result)]
        told = {"error": error and _described(error), "result": result if self._fetched else None, "marks": marks}
        self._write({**known, self._call: told})
        if error:
            raise error
        return result

    def _mark(self, result: Any) -> list[int] | None:
        """Tells the file from others of its name: another host may have one too."""
        path = str(result) if self._fetched else self._key
        with contextlib.suppress(OSError):
            facts = os.stat(_landmark(path))
            return [facts.st_size, facts.st_mtime_ns]
        return None

    def _read(self) -> dict[str, Any]:
        self._file.seek(0)
        text = self._file.read()
        try:
            return json.loads(text) if text else {}
        except ValueError:  # its writer was killed
            return {}

    def _write(self, known: dict[str, Any]) -> None:
        """Leaves out what no worker can ask for any more."""
        recent = {call: facts for call, facts in known.items() if int(call.split()[0]) >= self._meetings}
        self._file.truncate(0)
        self._file.write(json.dumps(recent))
        self._file.flush()


def _claim_path(key: str) -> Path:
    run_dir = world.current().options.run_dir
    return world.claims_folder(run_dir) / hashlib.sha256(key.encode()).hexdigest()[:24]


def _landmark(path: str) -> str:
    """The file that appears last when ``path``, the prefix of a checkpoint or a folder is written."""
    inside = os.path.join(path, "saved_model.pb")
    return next((file for file in (f"{path}.index", inside) if os.path.exists(file)), path)


# -- waiting before reading -------------------------------------------------------------------------------


def _await(path: str) -> None:
    if not _thread.busy:
        _await_writer(path)
        for _ in _while_others_may_write(lambda: os.path.exists(_landmark(path)), f"read {path}"):
            _await_writer(path)
    atomic.settle(path)


def _await_writer(path: str) -> None:
    claim = _claim_path(os.path.realpath(path)) if world.joined() and world.current().options.run_dir else None
    if claim and claim.exists():
        with open(claim, "rb") as file, contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH)


def _while_others_may_write(exists: Callable[[], bool], call: str) -> Iterator[None]:
    """Gives a turn now and one whenever the other workers have done more, until the file exists, or each of them is at its next exchange or
    waits likewise: a file that is not there by then does not come."""
    yield
    moving, again = world.joined() and not _thread.busy and _meets(world.sharing()), False
    while moving and not exists():
        moving = world.sharing().comm.pass_by(call, again, exists)[1]
        again = True
        yield


# -- errors that travel --------------------------------------------------------------------------------------


def _described(error: Exception) -> dict[str, Any]:
    number = getattr(error, "errno", None) if isinstance(error, OSError) else None
    name = getattr(error, "filename", None)
    text = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    return {
        "type": type(error).__name__,
        "errno": number,
        "text": str(text),
        "file": name if isinstance(name, str) else None,
    }


def _again(facts: dict[str, Any]) -> Exception:
    """An error of the same type and words as the writer's."""
    kind = getattr(builtins, facts["type"], None) or getattr(tf.errors, facts["type"], None)
    text = facts["text"]
    with contextlib.suppress(TypeError):
        if isinstance(kind, type) and issubclass(kind, tf.errors.OpError):
            return kind(None, None, text)
        if isinstance(kind, type) and issubclass(kind, OSError) and facts["errno"] is not None:
            return OSError(facts["errno"], text, facts["file"])
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind(text)
    return SyrtosError(f"Another worker could not write the file: {facts['type']}: {text}")
