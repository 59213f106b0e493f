"""The watchers of a run while it goes on: trackers, in a process of their own, and Prometheus."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from syrtos.errors import ConfigurationError
from syrtos.json_files import document
from syrtos.launch.worker import debugging
from syrtos.run_dir import RunDir
from syrtos.settings import KUBEFLOW_VARIABLES

TRACKERS = (
    "tensorboard[:FOLDER], mlflow[:URI], wandb[:PROJECT] (offline unless WANDB_MODE is set),"
    " jsonl[:FILE], otlp[:URL] (OpenTelemetry) or kubeflow (in a TrainJob, where it is on by"
    " itself); defaults are in the run directory or the tracker's own"
)
_MADE = ("tracked.json", "advice.json", "trace.json.gz", "report.html", "metrics.jsonl")
# Seconds that trackers may take after a run to log the rest, and after which that is said.
_PATIENCE, _SAID = 120.0, 2.0


def all_trackers(track: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the trackers that were asked for, and possibly ``kubeflow``.

    ``kubeflow`` is added in a TrainJob that wants to know of its progress.
    """
    wanted = all(env.get(name) for name in KUBEFLOW_VARIABLES) and "kubeflow" not in track
    return (*track, *(("kubeflow",) if wanted else ()))


def check(track: Sequence[str], metrics_port: int | None) -> None:
    """Refuses trackers that can't be used, or a port that Prometheus can't.

    Raises:
        ConfigurationError: the run can't be watched like this.
    """
    if track:
        # only here: a run that is not tracked should start at once
        from syrtos.report import trackers

        trackers.check(track)
    if metrics_port is not None:
        if not 0 <= metrics_port < 1 << 16:
            raise ConfigurationError(
                f"`--metrics-port` must be a port, or 0 for a free one. Received: {metrics_port}."
            )
        try:
            import prometheus_client  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                "`--metrics-port` needs a package that is not installed: `pip install"
                " prometheus-client`."
            ) from error


def forget(run_dir: Path) -> None:
    """Removes what was made from an earlier run in the same folder.

    That is reports, recommendations, profiles, and what trackers have kept there.
    """
    tracked = document(run_dir / "tracked.json").get("tensorboard")
    kept = tracked.get("known_as", "") if isinstance(tracked, dict) else ""
    # A folder elsewhere may have other runs too.
    if kept == str(run_dir / "tensorboard"):
        shutil.rmtree(kept, ignore_errors=True)
    debugging.forget(run_dir)
    for name in _MADE:
        (run_dir / name).unlink(missing_ok=True)


def _remove_unfinished(run_dir: Path) -> None:
    """Removes the folders that profilers of workers that were ended have left."""
    for pattern in ("profile-*", "generation-*/profile-*"):
        for folder in run_dir.glob(pattern):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def watching(run_dir: Path, track: Sequence[str], metrics_port: int | None) -> Iterator[None]:
    """Context manager: the run is watched by trackers and by Prometheus.

    Raises:
        ConfigurationError: the port is taken.
    """
    with contextlib.ExitStack() as stack:
        if metrics_port is not None:
            from syrtos.report.prometheus import serving

            port = stack.enter_context(serving(run_dir, metrics_port))
            print(f"syrtos: metrics on http://127.0.0.1:{port}/metrics", file=sys.stderr)
        if track:
            stack.enter_context(_tracking(run_dir, track))
        stack.callback(_remove_unfinished, run_dir)
        yield


@contextlib.contextmanager
def _tracking(run_dir: Path, words: Sequence[str]) -> Iterator[None]:
    """Context manager: a process of its own logs the run; at the end it logs the rest."""
    log = RunDir(run_dir).logs / "track.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
    except OSError as error:
        print(f"syrtos: {log} can't be written: {error.strerror}", file=sys.stderr)
        log = Path(os.devnull)
    command = [
        sys.executable,
        "-P",
        "-m",
        "syrtos",
        "track",
        str(run_dir),
        *words,
        "--until-closed",
    ]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield
    finally:
        assert process.stdin is not None
        # The sign that the run has ended: see `--until-closed`.
        process.stdin.close()
        _await(process, log)


def _await(process: subprocess.Popen[bytes], log: Path) -> None:
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SAID)
        if process.poll() is None:
            print("syrtos: trackers log the rest of the run.", file=sys.stderr)
        code = process.wait(_PATIENCE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()
        code = -1
    if code:
        said = ""
        with contextlib.suppress(OSError):  # the run directory may have been removed
            said = log.read_text(errors="replace").strip()
        last = said.splitlines()[-1:] or ["it was stopped"]
        print(f"{last[0]}\nsyrtos: what trackers said is in {log}", file=sys.stderr)
