"""`syrtos.ray.run` calls a function on many workers of a Ray cluster, also in a Ray Tune trial."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from syrtos import settings
from syrtos.engines.engine import EngineRequest
from syrtos.errors import ConfigurationError
from syrtos.launch.spec import new_run_dir
from syrtos.notebook import launcher, parcel
from syrtos_clusters.ray import agent_socket
from syrtos_clusters.ray.request import RayRequest, request_of

if TYPE_CHECKING:
    from syrtos_clusters.ray.placement_group import WorkerPlaces

_EVERY = 1.0  # seconds between two looks for epochs that have ended


def run(
    function: Callable[..., object],
    args: Sequence[object] = (),
    *,
    workers: int,
    gpus_per_worker: int = 0,
    min_workers: int | None = None,
    values: Mapping[str, object] | None = None,
    **options: object,
) -> object:
    """Calls ``function(*args)`` on workers that Ray places on its nodes; returns rank 0's result.

    The function trains like a script under `syrtos run`: plain `model.fit` needs no change. It
    travels as that of `syrtos.notebook_launcher` does, and its result comes back alike. Inside a
    trial of Ray Tune, workers take the bundles of the trial's placement group from the second on.
    Where a session of Ray Tune or Ray Train is active, the logs of each epoch are reported to it.

    Usage::

        def trial(config):
            syrtos.ray.run(train, (config,), workers=4)

        bundles = [{"CPU": 1}] + [{"CPU": 1}] * 4
        resources = tune.PlacementGroupFactory(bundles)
        tune.Tuner(tune.with_resources(trial, resources), param_space=...).fit()

    Args:
        function: the function that each worker calls.
        args: its arguments.
        workers: the number of workers.
        gpus_per_worker: GPUs of each.
        min_workers: follow the nodes, with so many workers at least, while they are lost and come
            back.
        values: what `syrtos run --on ray` has `--with` for: ``{"cpus-per-worker": 2, "strategy":
            "SPREAD"}``.
        options: options of `syrtos run`, with underscores: ``max_restarts=0``,
            ``run_dir="/shared/runs/first"``.

    Returns:
        The result of the function on rank 0. A Keras model comes as a copy, a `History` without its
        model.

    Raises:
        ConfigurationError: something can't travel, an option is wrong, or Ray is not installed; or,
            at the end, the result can't travel back.
        LaunchError: Ray has no places for the workers, or a worker failed: the message has its
            traceback.
        KeyboardInterrupt: this process was sent SIGINT; no worker is left.
    """
    launcher.check(function, args, workers)
    options = {"run_dir": new_run_dir(), **options}
    command = _command(workers, min_workers, options)
    asked = _request_of(workers, gpus_per_worker, values or {})
    with _reserve_places(asked, _pack(function, args)) as places:
        return _run_on(places, command, Path(str(options["run_dir"])), workers)


def _run_on(places: WorkerPlaces, command: Sequence[str], run_dir: Path, workers: int) -> object:
    """Runs the launcher's command with workers on the places, and returns rank 0's result."""
    with (
        tempfile.TemporaryDirectory(prefix="syrtos-ray-") as folder,
        contextlib.closing(agent_socket.AgentSocket(path := str(Path(folder) / "door"), places)),
    ):
        env = launcher.environment_of_workers(settings.environment()) | {
            agent_socket.VARIABLE: path
        }
        # this process's own: workers have what Ray gives them
        env.pop("CUDA_VISIBLE_DEVICES", None)
        with reporting(places, str(run_dir.resolve())):
            launcher.run(command, env, subprocess.DEVNULL, run_dir, workers)
        with launcher.memory() as result:
            result.write(places.result())
            result.flush()
            return launcher.result_of(result, run_dir)


def _command(workers: int, least: int | None, options: Mapping[str, object]) -> tuple[str, ...]:
    """Returns the launcher's command line. The launcher asks this process's socket for places."""
    elastic = () if least is None else ("--min-workers", str(least))
    chosen = ("--on", "ray", "-n", str(workers), *elastic)
    of_run = tuple(launcher.flags(options))
    return launcher.command(*chosen, *of_run)


def _request_of(workers: int, gpus: int, values: Mapping[str, object]) -> RayRequest:
    texts = {name: str(value) for name, value in values.items()}
    return request_of(EngineRequest(workers, gpus, Path(), (), texts, sys.executable, Path.cwd()))


def _pack(function: Callable[..., object], args: Sequence[object]) -> bytes:
    with launcher.memory() as file:
        parcel.pack(function, args, "", file)
        return file.read()


def _reserve_places(asked: RayRequest, packed: bytes) -> contextlib.closing[WorkerPlaces]:
    """Returns a context manager of the places, which Ray has reserved.

    Raises:
        ConfigurationError: Ray is not installed.
        LaunchError: Ray has no places.
    """
    try:
        from syrtos_clusters.ray.placement_group import WorkerPlaces
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"`syrtos.ray.run` needs the package {error.name}: `pip install 'syrtos[ray]'`."
        ) from error
    return contextlib.closing(WorkerPlaces(asked, parcel=packed))


# -- metrics ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def reporting(places: WorkerPlaces, run_dir: str) -> Iterator[None]:
    """Context manager: reports logs of epochs to the active session of Ray Tune or Ray Train."""
    report = _report_of_session()
    if report is None:
        yield
        return
    over, told = threading.Event(), dict[str, int]()

    def follow() -> None:
        while not over.wait(_EVERY):
            _report_new(places.epochs(run_dir), told, report)

    thread = threading.Thread(target=follow, name="syrtos-reports", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        _report_new(places.epochs(run_dir), told, report)


def _report_new(
    found: Mapping[str, list[str]], told: dict[str, int], report: Callable[[dict[str, Any]], None]
) -> None:
    """Reports new lines about epochs; ``told`` has the numbers of those already reported."""
    for name, lines in found.items():
        for line in lines[told.get(name, 0) :]:
            report(_metrics(line))
        told[name] = len(lines)


def _metrics(line: str) -> dict[str, Any]:
    facts = json.loads(line)
    rate = {} if facts.get("learning_rate") is None else {"learning_rate": facts["learning_rate"]}
    return {**facts["logs"], **rate, "epoch": facts["epoch"]}


def _report_of_session() -> Callable[[dict[str, Any]], None] | None:
    """Returns the function that reports metrics to an active session; None if there is none."""
    tune, train = sys.modules.get("ray.tune"), sys.modules.get("ray.train")
    if tune is not None and tune.get_context().get_trial_id() is not None:
        return tune.report
    # which kind of error says that there is no session differs between versions of Ray
    with contextlib.suppress(Exception):
        if train is not None and train.get_context().get_world_size() is not None:
            return train.report
    return None
