"""`syrtos status`, `logs` and `stop` of a run directory: they follow who runs the run now."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from syrtos.checkpoint import durable
from syrtos.engines.engine import BY_SCHEDULER, RunState, Submitted, read_end
from syrtos.engines.launched_run import LaunchedRun
from syrtos.engines.registry import engine_of
from syrtos.errors import ConfigurationError
from syrtos.json_files import document, is_number
from syrtos.launch.run_lock import going_on_error, is_going_on, launcher_of, taking_run_lock
from syrtos.launch.terminal import output
from syrtos.run_dir import RunDir

# What an engine needs to find a submitted run again, in the run directory.
_FACTS = "engine.json"
_EVERY = 0.1  # seconds between two looks at a run that is to end
# Seconds that a run may take to end after its scripts' time is over: it saves its last snapshot.
_PATIENCE, _GRACE = 60.0, 10.0


def submit(run_dir: Path, engine: str, start: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
    """Submits a run to an engine by ``start``, writes its facts down, and returns them.

    Raises:
        ConfigurationError: a run in the folder is going on, or has just been submitted.
    """
    # whatever the engine needs it for is said by the engine
    with contextlib.suppress(OSError):
        run_dir.mkdir(parents=True, exist_ok=True)
    # of two commands at once, the second finds what the first has written down
    known = document(run_dir / _FACTS)
    with taking_run_lock(run_dir, launches=False):
        before = _submission_in(run_dir)
        begins = isinstance(before, LaunchedRun) and before.launcher.runs()
        if begins or document(run_dir / _FACTS) != known:
            raise going_on_error(run_dir)
        facts = start()
        text = json.dumps({"engine": engine, "facts": facts})
        durable.replace(run_dir / _FACTS, text.encode())
    return facts


def forget_submission(run_dir: Path) -> None:
    """Removes what `submit` has written: the run goes on, or anew, without that engine."""
    (run_dir / _FACTS).unlink(missing_ok=True)


def find_followed(run_dir: Path) -> Submitted | None:
    """Returns who runs the run in a folder, or ran it last; None if nobody is known.

    That is the engine that it was submitted to, or else the launcher that has taken the lock last.
    """
    submitted = _submission_in(run_dir)
    launcher = launcher_of(run_dir)
    if launcher is None or (submitted and not isinstance(submitted, LaunchedRun)):
        return submitted
    # One that was started in the background just now has not come to the lock yet.
    if submitted and submitted.launcher.since > launcher.since and not launcher.runs():
        return submitted
    return LaunchedRun(run_dir, launcher)


def _submission_in(run_dir: Path) -> Submitted | None:
    """Returns the run that `submit` has written down; None without one that makes sense."""
    kept: dict[str, Any] = document(run_dir / _FACTS)
    try:
        found = engine_of(kept["engine"]).submitted_run(kept["facts"])
        # that of a folder which this one is a copy of
        is_another = isinstance(found, LaunchedRun) and not found.is_in(run_dir)
        return None if is_another else found
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def print_status(run_dir: Path) -> int:
    """Prints the state of a run, and how far it is or its reason.

    Returns:
        0 while it runs or waits and after it has finished, else its exit code.

    Raises:
        ConfigurationError: there is no run in the folder.
    """
    followed = find_followed(run_dir)
    state = _state_of(run_dir, followed)
    print(describe_state(run_dir, followed, state))
    return ((state.code or 1) & 0xFF or 1) if state.phase in ("failed", "stopped") else 0


def _has_no_result(state: RunState) -> bool:
    return state.phase == "failed" and state.code is None


def _refuse_unreadable(run_dir: Path) -> None:
    """Raises ConfigurationError if a run's folder, or the file of its end, is another user's."""
    if run_dir.is_dir() and not os.access(run_dir, os.R_OK | os.X_OK):
        raise ConfigurationError(
            f"This user can't read the folder {run_dir}: ask its owner what has become of the run."
        )
    path = RunDir(run_dir).request_file
    if os.path.exists(path) and not os.access(path, os.R_OK):
        raise ConfigurationError(
            f"The end of the run in {run_dir} is in its run.json, which this user can't read: ask"
            f" its owner. `syrtos report --text {shlex.quote(str(run_dir))}` shows the rest."
        )


def _state_of(run_dir: Path, followed: Submitted | None) -> RunState:
    """Returns the state of a run, also of one whose launcher nobody has written down.

    Raises:
        ConfigurationError: there is no run in the folder.
    """
    if followed is not None:
        state = followed.state()
        if _has_no_result(state):
            _refuse_unreadable(run_dir)
        return state
    if is_going_on(run_dir):
        return RunState("running")
    _refuse_unreadable(run_dir)
    if not RunDir(run_dir).request():
        raise ConfigurationError(
            f"There is no run in {run_dir}: name the folder that `syrtos run` has printed."
        )
    return read_end(run_dir) or RunState(
        "failed",
        f"The launcher ended without recording a result. See {RunDir(run_dir).newest().logs}.",
    )


def describe_state(run_dir: Path, followed: Submitted | None, state: RunState) -> str:
    """Returns the state of a run in one line."""
    # only here: `syrtos run` has no use for it at its start
    from syrtos.report.progress import read_progress, silence_worth_a_word

    if state.phase == "waiting":
        return f"Waiting: {state.why}" if state.why else "Waiting."
    if _has_no_result(state) and state.why:
        return _sentence(state.why)
    progress = read_progress(run_dir)
    if state.phase != "running":
        far = progress.describe()
        head = f"{state.phase.capitalize()}{f': {far}' * bool(far)}."
        return f"{head} {_sentence(state.why)}".rstrip()
    launcher = followed.launcher if isinstance(followed, LaunchedRun) else None
    if launcher and launcher.is_suspended():
        text = f"Running, but launcher {launcher.pid} is suspended (`kill -CONT {launcher.pid}`)."
    elif launcher and (silent := silence_worth_a_word(progress, launcher.since)):
        text = f"Running, but no sign of life for {silent:.0f} s."
    elif launcher or progress.silent is not None:
        text = f"Running: {progress.describe_running()}."
    else:
        # its folder is on another machine
        text = "Running."
    return f"{text} {state.why}".rstrip()


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def print_output(run_dir: Path, follow_it: bool) -> int:
    """Prints what a run has printed, or where a terminal shows that, the log of rank 0.

    Raises:
        ConfigurationError: there is no run in the folder.
    """
    followed = _require_followed(run_dir)
    if isinstance(followed, LaunchedRun) and not followed.launcher.in_background:
        output.say("this run prints on a terminal of its own; the log of rank 0 follows")
    print_pieces(followed.output(follow_it))
    return 0


def print_pieces(pieces: Iterator[bytes], silent: bool = False) -> None:
    """Prints what comes, as it comes; with ``silent`` it is only read."""
    for piece in pieces:
        if not silent:
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()


def stop(run_dir: Path) -> int:
    """Sends the run's launcher, or its engine, the signal to stop, and waits for its end.

    Returns:
        0 if the run has ended and recorded how, or had ended before; else 1.

    Raises:
        ConfigurationError: there is no run in the folder, or it can't be stopped from here.
    """
    followed = _require_followed(run_dir)
    state = _state_of(run_dir, followed)
    if state.is_over:
        output.say(f"no run is going on in {run_dir}. {describe_state(run_dir, followed, state)}")
        return 0
    with _stopping(run_dir) as is_first:
        if is_first:
            followed.stop()
            output.say(f"Stop signal sent to {followed.name}; waiting…")
        else:
            output.say(f"Another `syrtos stop` has sent {followed.name} the signal; waiting…")
        return _await_end(run_dir, followed)


def _await_end(run_dir: Path, followed: Submitted) -> int:
    grace = RunDir(run_dir).request().get("grace")
    patience = (grace if is_number(grace) else _GRACE) + _PATIENCE
    deadline = time.monotonic() + patience
    while not (state := followed.state()).is_over:
        if time.monotonic() > deadline:
            output.say(
                f"{followed.name} has not ended within {patience:.0f} s: `syrtos status {run_dir}`"
                f" says when it has. Another `syrtos stop {run_dir}` ends its workers at once."
            )
            return 1
        time.sleep(_EVERY)
    if _has_no_result(state) and isinstance(followed, LaunchedRun):
        # perhaps its launcher had not come as far as to write an end when the signal came
        _note_stopped(run_dir, followed)
        state = followed.state()
    output.say(describe_state(run_dir, followed, state))
    return 1 if _has_no_result(state) else 0


def _note_stopped(run_dir: Path, followed: LaunchedRun) -> None:
    """Writes down that a run was stopped, if none of its workers had begun."""
    ledgers = RunDir(run_dir).newest().ledgers().values()
    begun = any(path.stat().st_mtime > followed.launcher.since for path in ledgers)
    if begun or is_going_on(run_dir):
        return
    files = RunDir(run_dir)
    facts = files.request() | {"end": BY_SCHEDULER}
    durable.replace(files.request_file, json.dumps(facts, indent=2).encode(), mode=0o600)


@contextlib.contextmanager
def _stopping(run_dir: Path) -> Iterator[bool]:
    """Context manager: yields whether no other command stops the run at this moment.

    A second signal would end workers that still save their state.
    """
    descriptor = os.open(run_dir, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_first = True
        except BlockingIOError:
            is_first = False
        except OSError:
            # The file system has no locks for folders: nothing is known of other commands.
            is_first = True
        yield is_first
    finally:
        os.close(descriptor)


def _require_followed(run_dir: Path) -> Submitted:
    followed = find_followed(run_dir)
    if followed is None:
        _refuse_unreadable(run_dir)
        raise ConfigurationError(
            f"There is no run in {run_dir} whose launcher is known: name the folder that `syrtos"
            " run` has printed. Its workers' output is in its folder `logs`."
        )
    return followed
