"""`syrtos.remote`: a decorator by which calls of a function run on workers, wherever these are."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from syrtos import settings
from syrtos.errors import ConfigurationError
from syrtos.launch.spec import new_run_dir
from syrtos.notebook import launcher, parcel

Place = Literal["here", "ray", "slurm"]


def remote(
    *,
    workers: int = 2,
    on: Place = "here",
    hosts: str = "",
    values: Mapping[str, object] | None = None,
    **options: object,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes each call of a function train on workers, and return rank 0's result.

    The function trains like a script under `syrtos run`: plain `model.fit` needs no change. It
    travels as that of `syrtos.notebook_launcher` does: with what it uses of the notebook or script.
    Output appears as it comes, and Ctrl-C, or the notebook's stop button, ends all workers.

    Usage::

        @syrtos.remote(hosts="alpha:2,beta:2")
        def train(epochs):
            model = build()
            model.fit(x, y, epochs=epochs)
            return model

        model = train(5)

    Args:
        workers: the number of workers; with ``hosts`` that of all their slots.
        on: ``here``, this machine; ``slurm``, an allocation that `salloc` gets; or ``ray``.
        hosts: hosts reached by ssh, as ``alpha:2,beta:2``. Each needs the same environment at the
            same path.
        values: what `syrtos run --on ENGINE` has `--with` for: ``{"time": "1:00:00"}`` gives
            `salloc` its option ``--time``.
        options: options of `syrtos run`, with underscores: ``max_restarts=0``,
            ``run_dir="/shared/runs/first"``, and with ``hosts`` also ``ssh`` and ``env``.

    Returns:
        A decorator. The function itself is the attribute ``__wrapped__`` of what it returns.

    Raises:
        ConfigurationError: there is no such place, or ``hosts`` stands beside one. A call raises
            what `syrtos.notebook_launcher` does.
    """
    if on not in ("here", "ray", "slurm") or (hosts and on != "here"):
        raise ConfigurationError(
            "`syrtos.remote` runs functions `on` here, slurm or ray, or on `hosts`, one of these."
            f" Received: on={on!r}, hosts={hosts!r}. Kubernetes takes scripts: `syrtos run --on"
            " kubernetes`."
        )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            given = _positional(function, args, named)
            if on == "ray":
                run = importlib.import_module("syrtos.ray").run
                return run(function, given, workers=workers, values=values, **options)
            if hosts or on == "slurm":
                chosen = ("--hosts", hosts) if hosts else ("-n", str(workers))
                before = () if hosts else _allocation(workers, values or {})
                return _call_on_hosts(function, given, (*before, *_RUN, *chosen), options)
            return launcher.notebook_launcher(function, given, workers=workers, **options)

        return call

    return decorate


# Options of `syrtos run` for other hosts.
_OF_HOSTS = ("env", "ssh")
_RUN = (sys.executable, "-P", "-m", "syrtos", "run")


def _positional(
    function: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Returns the arguments of a call by their positions."""
    bound = inspect.signature(function).bind(*args, **named)
    if bound.kwargs:
        raise ConfigurationError(
            f"Arguments travel by position, and these of `{function.__name__}` have none:"
            f" {', '.join(bound.kwargs)}. Take away the `*` before them in its signature."
        )
    return bound.args


def _allocation(workers: int, values: Mapping[str, object]) -> Sequence[str]:
    """Returns the command that runs another one in an allocation of Slurm for so many workers."""
    asked = (f"--{name}={value}" for name, value in values.items())
    return ("salloc", "--quiet", f"--ntasks={workers}", *asked)


def _call_on_hosts(
    function: Callable[..., Any],
    args: Sequence[Any],
    command: Sequence[str],
    options: Mapping[str, object],
) -> Any:
    """Calls a function on workers of a run whose launcher reaches its hosts by agents."""
    launcher.check(function, args, 1)
    asked = {"run_dir": new_run_dir(), **options}
    words = (*command, *launcher.flags(asked, _OF_HOSTS), "-m", "syrtos.notebook.call")
    with launcher.memory() as parcel_file, launcher.memory() as result:
        parcel.pack(function, args, "", parcel_file)
        place = f"/proc/{os.getpid()}/fd/{result.fileno()}"
        env = launcher.environment_of_workers(settings.environment())
        env[settings.CALL_VARIABLE] = f"/proc/{os.getpid()}/fd/{parcel_file.fileno()}:{place}"
        launcher.run(words, env, subprocess.DEVNULL)
        return launcher.result_of(result, asked["run_dir"])
