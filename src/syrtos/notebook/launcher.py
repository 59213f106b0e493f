"""`syrtos.notebook_launcher`: calls a function on many workers of this machine.

The function is one of a notebook or of a script.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

from syrtos import settings, topology
from syrtos.errors import ConfigurationError, LaunchError
from syrtos.launch.processes import signalling
from syrtos.launch.spec import new_run_dir
from syrtos.launch.spelling import closest_name
from syrtos.notebook import parcel
from syrtos.notebook.screen import Screen
from syrtos.report.live_progress import showing_progress

_OF_RUN = ("grace", "max_restarts", "metrics_port", "oversubscribe", "profile", "run_dir", "track")
# Names that other launchers have for ours.
_ELSEWHERE = dict.fromkeys(("num_processes", "np", "num_proc", "nprocs", "n"), "workers")
_NOT_HERE = ("hosts", "hostfile", "ssh", "discover", "min_workers", "env")
GRACE = 5.0  # seconds: a person who stops a cell waits for it


def notebook_launcher(
    function: Callable[..., object],
    args: Sequence[object] = (),
    *,
    workers: int = 2,
    **options: object,
) -> object:
    """Calls ``function(*args)`` on several workers of this machine, and returns rank 0's result.

    The function trains like a script under `syrtos run`: plain `model.fit` needs no change. It
    travels by value, with all that it uses of the notebook: functions, classes, variables, imports.
    Models, data sets of TensorFlow, open files and the like don't travel: build them inside the
    function. Progress and the summary appear in the cell. The stop button ends all workers.

    Usage::

        def train(epochs):
            model = build()
            model.fit(x, y, epochs=epochs)
            return model

        model = syrtos.notebook_launcher(train, (5,), workers=2)

    Args:
        function: the function that each worker calls.
        args: its arguments.
        workers: the number of workers.
        options: options of `syrtos run`, with underscores: ``batch="per-worker"``,
            ``max_restarts=0``, ``run_dir="runs/first"``, ``oversubscribe=True``.

    Returns:
        The result of the function on rank 0. A Keras model comes as a copy, a `History` without its
        model. The other workers' results are dropped: to have them, gather them inside the function
        with `syrtos.allgather_object`.

    Raises:
        ConfigurationError: something can't travel, an option is wrong, or this process is a worker
            itself; or, at the end, the result can't travel back.
        LaunchError: a worker failed, and the message has its traceback, with the lines of the
            notebook; or rank 0 ended without returning.
        KeyboardInterrupt: the kernel was interrupted; no worker is left.
    """
    check(function, args, workers)
    _check_cores(workers, bool(options.get("oversubscribe")))
    env = environment_of_workers(settings.environment())
    options = {"grace": GRACE, "run_dir": new_run_dir(), **options}
    with memory() as parcel_file, memory() as result:
        parcel.pack(function, args, f"/proc/{os.getpid()}/fd/{result.fileno()}", parcel_file)
        words = command("-n", str(workers), *flags(options))
        run(words, env, parcel_file, Path(str(options["run_dir"])), workers)
        return result_of(result, options["run_dir"])


def command(*options: str) -> tuple[str, ...]:
    """Returns the command of a run, with these options of `syrtos run`, that calls a function."""
    run = (sys.executable, "-P", "-m", "syrtos", "run")
    return (*run, *options, "-m", settings.CALL_PROGRAM)


def check(function: object, args: object, workers: object) -> None:
    """Raises ConfigurationError if no workers can be started."""
    if not callable(function):
        raise ConfigurationError(
            f"`function` must be a function. Received: {function!r}. Hand it over without calling"
            " it: `notebook_launcher(train)`."
        )
    if not isinstance(args, tuple | list):
        raise ConfigurationError(
            "`args` must be a tuple of the function's arguments, as in `notebook_launcher(train,"
            f" (5,))`. Received: {args!r:.80}."
        )
    if not isinstance(workers, int) or workers < 1:
        raise ConfigurationError(f"`workers` must be 1 or more. Received: {workers!r}.")
    started = topology.detect(settings.environment())
    by_syrtos = settings.OPTIONS_VARIABLE in settings.environment()
    if started is not None or by_syrtos:
        by = started.starter if started and not by_syrtos else "syrtos run"
        raise ConfigurationError(
            f"`notebook_launcher` was called in a process that {by} has started as one of several"
            " workers: each would start workers of its own. Call the function itself, or start"
            " this process without it."
        )
    if not hasattr(os, "memfd_create"):
        raise ConfigurationError("`notebook_launcher` needs Linux, as all of syrtos does.")


def _check_cores(workers: int, oversubscribe: bool) -> None:
    """Raises ConfigurationError like `syrtos run` if there are too few cores.

    The message names the notebook's options.
    """
    cores = len(os.sched_getaffinity(0))
    if workers > cores and not oversubscribe:
        raise ConfigurationError(
            f"{workers} workers were asked for, and this machine offers {cores}"
            f" core{'s' * (cores != 1)}: they would take turns. Use `workers={cores}`, or"
            " `oversubscribe=True` if that is what you want."
        )


def environment_of_workers(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the workers' environment, with the Keras backend used here, however it was chosen."""
    found = dict(env)
    # Only a kernel has this display of plots.
    if "inline" in found.get("MPLBACKEND", ""):
        found["MPLBACKEND"] = "agg"
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "backend"):
        found.setdefault("KERAS_BACKEND", keras.backend.backend())
    return found


def flags(options: Mapping[str, object], also: Collection[str] = ()) -> Iterator[str]:
    """Yields the options of `syrtos run` in the form of its command line.

    ``also``: options that are not for this machine's workers, and are taken here.

    Raises:
        ConfigurationError: there is no such option, or it is not for a notebook.
    """
    known = {field.name for field in dataclasses.fields(settings.Options)} - {
        "servers",
        "staleness",
    } | {*_OF_RUN, *also}
    for name, value in options.items():
        if name not in known:
            _refuse(name, known)
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            yield flag
        elif value is not None and value is not False:
            for each in value if isinstance(value, tuple | list) else (value,):
                yield f"{flag}={each}"


def _refuse(name: str, known: set[str]) -> NoReturn:
    if name in _ELSEWHERE:
        raise ConfigurationError(f"`{name}` is called `{_ELSEWHERE[name]}` here.")
    if name in _NOT_HERE:
        raise ConfigurationError(
            f"`{name}` is for several hosts: `syrtos.remote(hosts=...)` calls functions on hosts"
            " that are reached by ssh, and `syrtos run --hosts` runs scripts."
        )
    if name in ("servers", "ps", "staleness"):
        raise ConfigurationError(
            f"`{name}` is for parameter servers, which a notebook can't have: write a script for"
            " `syrtos run --ps`."
        )
    close = closest_name(name, known)
    meant = f" Did you mean `{close}`?" if close else ""
    raise ConfigurationError(
        f"There is no option `{name}`.{meant} Options are: {', '.join(sorted(known))}."
    )


@contextlib.contextmanager
def memory() -> Iterator[IO[bytes]]:
    """Context manager: yields a file that has no name, is on no disk, and is gone at the end."""
    with os.fdopen(os.memfd_create(parcel.NAME), "w+b") as file:
        yield file


def run(
    command: Sequence[str],
    env: Mapping[str, str],
    parcel_file: IO[bytes] | int,
    run_dir: Path,
    workers: int,
) -> None:
    """Runs the workers to their end; a terminal shows how far they are while they print nothing.

    Raises:
        ConfigurationError: an option was refused.
        LaunchError: a worker failed.
        KeyboardInterrupt: this process was sent SIGINT.
    """
    screen, came = Screen(), list[int]()
    # JAX warns of forks; what is forked here becomes another program at once
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        process = subprocess.Popen(
            command,
            env=env,
            stdin=parcel_file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A kernel's interrupt goes to its whole group of processes: it is ours to pass on.
            start_new_session=True,
            preexec_fn=signalling.death_with_parent(),
        )
    # Of several calls, each in a thread, none knows what the others print.
    is_alone = threading.current_thread() is threading.main_thread()
    showing = showing_progress(run_dir, workers, screen.terminal if is_alone else {})
    with process, _interrupts(process, came), showing:
        try:
            screen.follow(process)
        except BaseException:
            process.kill()
            raise
    if came:
        screen.release()
        raise KeyboardInterrupt
    if process.returncode:
        # Exit code 2 without a report: no worker was started, as an option was refused.
        refused = process.returncode == 2 and not screen.has_report
        raise (ConfigurationError if refused else LaunchError)(screen.report())
    screen.release()


@contextlib.contextmanager
def _interrupts(process: subprocess.Popen[bytes], came: list[int]) -> Iterator[None]:
    """Context manager: passes SIGINT on to a process, and notes its number in ``came``.

    The process ends its workers at the first SIGINT, and kills them at once at the second.
    """

    def pass_on(number: int, _frame: object) -> None:
        came.append(number)
        process.send_signal(signal.SIGINT)

    # only the main thread may set a handler of signals
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def result_of(file: IO[bytes], run_dir: object) -> object:
    if not os.fstat(file.fileno()).st_size:
        raise LaunchError(
            "rank 0 ended without returning, as after `sys.exit(0)`: there is no result. Let the"
            " function come to its end, or return early. Run directory:"
            f" {Path(str(run_dir)).resolve()}"
        )
    file.seek(0)
    result, refused = pickle.load(file)
    if refused:
        raise ConfigurationError(
            "The function has come to its end on all workers, but what it returned can't come back"
            f" to this process: {refused}. Return numbers, texts, arrays (`model.get_weights()`),"
            " lists or dicts (`history.history`), or save to a file. Run directory:"
            f" {Path(str(run_dir)).resolve()}"
        )
    return result
