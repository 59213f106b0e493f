"""`syrtos.remote`: a decorator by which calls of a function run on workers, wherever these are."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

from syrtos import entry_points, settings
from syrtos.engines.registry import engine_of
from syrtos.engines.reservation import NodeRequest
from syrtos.errors import ConfigurationError
from syrtos.launch.spec import new_run_dir, parse_hosts
from syrtos.launch.terminal import output
from syrtos.notebook import launcher, parcel

P = ParamSpec("P")
R = TypeVar("R")
Place = Literal["here", "ray", "slurm"]
# Options of `syrtos run` for other hosts.
_OF_HOSTS = ("env", "ssh")


@overload
def remote(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def remote(
    *,
    workers: int | None = None,
    on: Place = "here",
    hosts: str = "",
    nodes: int = 1,
    values: Mapping[str, object] | None = None,
    **options: object,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def remote(
    function: Callable[..., object] | None = None,
    /,
    *,
    workers: int | None = None,
    on: Place = "here",
    hosts: str = "",
    nodes: int = 1,
    values: Mapping[str, object] | None = None,
    **options: object,
) -> Callable[..., object]:
    """Makes each call of a function train on workers, and return rank 0's result.

    The function trains like a script under `syrtos run`: plain `model.fit` needs no change. It
    travels as that of `syrtos.notebook_launcher` does: with what it uses of the notebook or script.
    Output appears as it comes, and Ctrl-C, or the notebook's stop button, ends all workers.

    The result is unpickled here: hosts must be trusted as much as this machine.

    Usage::

        @syrtos.remote(hosts="alpha:2,beta:2")
        def train(epochs):
            model = build()
            model.fit(x, y, epochs=epochs)
            return model

        model = train(5)

    Args:
        function: the function, where the decorator stands without parentheses.
        workers: the number of workers (2); with ``hosts`` that of their slots.
        on: ``here``, this machine; ``slurm``, nodes that `salloc` reserves; or ``ray``.
        hosts: hosts reached by ssh, as ``alpha:2,beta:2``. Each needs the same environment at the
            same path.
        nodes: with Slurm, the number of nodes over which workers are divided evenly.
        values: what `syrtos run --on ENGINE` has `--with` for: ``{"time": "1:00:00"}``.
        options: options of `syrtos run`, with underscores: ``max_restarts=0``,
            ``run_dir="/shared/runs/first"``, and with ``hosts`` also ``ssh`` and ``env``.

    Returns:
        A decorator. The function itself is the attribute ``__wrapped__`` of what it returns.

    Raises:
        ConfigurationError: there is no such place, or arguments do not go together. A call raises
            what `syrtos.notebook_launcher` does.
    """
    if function is not None and not callable(function):
        raise ConfigurationError(
            f"Name the number of workers: `@syrtos.remote(workers={function!r})`."
        )
    _check_place(workers, on, hosts, nodes, values)
    # wrong names are refused before the first call
    list(launcher.flags(options, _OF_HOSTS if hosts else ()))
    count = 2 if workers is None else workers

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            return cast(R, call_there(function, _positional(function, args, named)))

        return call

    def call_there(function: Callable[..., object], given: tuple[object, ...]) -> object:
        if on == "ray":
            more: dict[str, Any] = options
            ray = entry_points.load(entry_points.NAMES, "ray")
            return ray.run(function, given, workers=count, values=values, **more)
        if on == "slurm":
            asked = {"run_dir": new_run_dir(), **options}
            folder = Path(str(asked["run_dir"])).absolute()
            with _nodes_of_slurm(count, nodes, values or {}, folder) as (found, command):
                return _call_on_hosts(function, given, found, {**asked, "ssh": command})
        if hosts:
            return _call_on_hosts(function, given, hosts, options)
        return launcher.notebook_launcher(function, given, workers=count, **options)

    return decorate if function is None else decorate(function)


def _check_place(
    workers: int | None, on: str, hosts: str, nodes: int, values: Mapping[str, object] | None
) -> None:
    if on not in ("here", "ray", "slurm"):
        raise ConfigurationError(
            "`syrtos.remote` runs functions `on` here, slurm or ray, or on `hosts`. Received:"
            f" on={on!r}. Kubernetes takes scripts: `syrtos run --on kubernetes`."
        )
    if hosts and on != "here":
        raise ConfigurationError(f"Give `on={on!r}` or `hosts={hosts!r}`, not both.")
    if hosts and workers is not None:
        raise ConfigurationError(
            "`workers` is the number of slots of `hosts`, as in `alpha:2,beta:2`. Leave one out."
        )
    if values and on == "here":
        raise ConfigurationError(
            "`values` are those of an engine: they go with `on='slurm'` or 'ray'."
        )
    if nodes < 1 or (nodes > 1 and on != "slurm") or (on == "slurm" and (workers or 2) % nodes):
        raise ConfigurationError(
            f"`nodes` divides the workers evenly over nodes of Slurm. Received: nodes={nodes},"
            f" workers={workers or 2}, on={on!r}."
        )


def _positional(
    function: Callable[..., object], args: tuple[object, ...], named: Mapping[str, object]
) -> tuple[object, ...]:
    """Returns the arguments of a call by their positions, with defaults where none was given."""
    bound = inspect.signature(function).bind(*args, **named)
    bound.apply_defaults()
    if bound.kwargs:
        raise ConfigurationError(
            f"Arguments travel by position, and these of `{function.__name__}` have none:"
            f" {', '.join(bound.kwargs)}. Take away the `*` before them in its signature."
        )
    return bound.args


class _Waiting:
    """Says what nodes are waited for, and why they are gone."""

    def is_over(self) -> bool:
        return False

    def tell(self, why: str) -> None:
        output.say(why)

    def note_loss(self, why: str, again: bool = True) -> None:
        output.say(why)


@contextlib.contextmanager
def _nodes_of_slurm(
    workers: int, nodes: int, values: Mapping[str, object], folder: Path
) -> Iterator[tuple[str, str]]:
    """Context manager: yields nodes as `--hosts` takes them, and the command to reach them."""
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    # GPUs are among the values, as Slurm has them
    wanted = NodeRequest("syrtos", nodes, workers // nodes, 0, texts, sys.executable, folder)
    with engine_of("slurm").reserve(wanted, _Waiting()) as held:
        names = (f"{node.name}:{workers // nodes}" for node in held.nodes())
        yield ",".join(names), held.command


def _call_on_hosts(
    function: Callable[..., object],
    args: Sequence[object],
    hosts: str,
    options: Mapping[str, object],
) -> object:
    """Calls a function on workers of a run whose launcher reaches its hosts by agents."""
    launcher.check(function, args, 1)
    asked = {"grace": launcher.GRACE, "run_dir": new_run_dir(), **options}
    words = launcher.command("--hosts", hosts, *launcher.flags(asked, _OF_HOSTS))
    folder = Path(str(asked["run_dir"]))
    workers = sum(host.slots for host in parse_hosts(hosts))
    with launcher.memory() as parcel_file, launcher.memory() as result:
        parcel.pack(function, args, "", parcel_file)
        places = (f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (parcel_file, result))
        env = launcher.environment_of_workers(settings.environment())
        env |= {settings.CALL_VARIABLE: ":".join(places)}
        launcher.run(words, env, subprocess.DEVNULL, folder, workers)
        return launcher.result_of(result, asked["run_dir"])
