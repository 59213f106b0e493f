"""A service for this user's own commands: the running one, or one of this process.

A service of this process runs for as long as it is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator

from syrtos.errors import ConfigurationError
from syrtos_jobs.api.service import ApiError, Service
from syrtos_jobs.observation import logs
from syrtos_jobs.runner import attempt, processes
from syrtos_jobs.runner.job_command import cores
from syrtos_jobs.storage.storage_uris import StorageURIs, store_of
from syrtos_jobs.store.home import Home, is_locked
from syrtos_jobs.store.job_store import Record, Store
from syrtos_jobs.tuning.operations import Operations, search_of
from syrtos_jobs.tuning.trial_rows import trials_of
from syrtos_jobs.tuning.trials import SearchTrial

_PATIENCE = 10.0  # seconds that scripts have to end after Ctrl-C


def service_of(home: Home, capacity: int | None = None) -> Service:
    """Returns the service of a folder, whether or not a process serves it."""
    places = StorageURIs(store_of(home))
    return Service(
        home, Store(home.database, home.place), places, capacity or cores(), home.placement()
    )


@contextlib.contextmanager
def running(home: Home) -> Iterator[tuple[Service, bool]]:
    """Context manager: yields a service that runs jobs, and whether it is this process's own."""
    if home.endpoint() is not None:
        yield service_of(home, home.capacity()), False
        return
    # only here: uvicorn and botocore take time to import, and a running service needs neither
    from syrtos_jobs.http.server import Server

    server = Server(home, cores())
    server.start()
    try:
        yield server.service, True
    finally:
        server.close()


def find_record(service: Service, name: str) -> Record:
    """Returns the record of a job.

    Raises:
        ConfigurationError: there is none of this name.
    """
    record = service.store.get(name)
    if record is None:
        raise ConfigurationError(
            f"There is no job {name} in {service.home.path}. `syrtos jobs` lists those there are."
        )
    return record


def follow(service: Service, name: str, wait: bool = True) -> Iterator[tuple[int, str]]:
    """Yields the lines of a job's output as they come, until the job has ended.

    Each line comes with its instance's number.

    Args:
        wait: if False, only the lines so far.
    """
    streams = logs.of(service.home.job(name) / "logs")
    offsets = [0] * len(streams)
    while True:
        # asked before the streams are read: what a job has written before its end is not missed
        over = not wait or find_record(service, name).state.final
        for k, stream in enumerate(streams):
            for event in stream.all(offsets[k]):
                offsets[k] = event.end
                yield k, event.text
        if over:
            return
        time.sleep(0.2)


def ask_to_stop(service: Service, name: str) -> None:
    """Asks a training job, or a tuning job, to end.

    Raises:
        ConfigurationError: there is none of this name, or it has ended.
    """
    if service.store.get(name) is None and service.tunings.get(name) is not None:
        _ask_search_to_stop(service, name)
        return
    find_record(service, name)
    try:
        service.stop_training_job({"TrainingJobName": name})
    except ApiError as error:
        raise ConfigurationError(str(error)) from error
    if not is_attended(service, name):
        # nobody is there who would obey
        service.store.change(name, lambda record: record.with_end("Stopped"))


def _ask_search_to_stop(service: Service, name: str) -> None:
    """Asks a tuning job to end."""
    try:
        Operations(service).stop_hyper_parameter_tuning_job({"HyperParameterTuningJobName": name})
    except ApiError as error:
        raise ConfigurationError(str(error)) from error
    if service.home.endpoint() is None:
        # no service runs that would end its training jobs, and write down the end
        for trial in trials(service, name):
            with contextlib.suppress(ConfigurationError):
                ask_to_stop(service, trial.name)
        service.tunings.change(
            name, lambda record: dataclasses.replace(record, status="Stopped", ended=time.time())
        )


def trials(service: Service, name: str) -> list[SearchTrial]:
    """Returns the trials of a tuning job.

    Raises:
        ConfigurationError: there is none of this name.
    """
    record = service.tunings.get(name)
    if record is None:
        raise ConfigurationError(f"There is no tuning job {name} in {service.home.path}.")
    return trials_of(service.store, search_of(record), record)


def stop_search(service: Service, name: str) -> None:
    """Ends a tuning job and its training jobs within seconds."""
    with contextlib.suppress(ConfigurationError):
        _ask_search_to_stop(service, name)
    running = [trial.name for trial in trials(service, name) if trial.active]
    # all at once, and only then waited for: each may take as long as scripts have
    for job in running:
        with contextlib.suppress(ConfigurationError):
            ask_to_stop(service, job)
    for job in running:
        stop(service, job)
    deadline = time.monotonic() + _PATIENCE
    while not getattr(service.tunings.get(name), "final", True) and time.monotonic() < deadline:
        time.sleep(0.1)


def is_attended(service: Service, name: str) -> bool:
    """Returns whether a process attends to a job: a running service, or the job's own runner."""
    return service.home.endpoint() is not None or is_locked(service.home.job(name) / attempt.LOCK)


def stop(service: Service, name: str) -> None:
    """Ends a job within seconds: its scripts get SIGTERM, and processes that remain are killed."""
    with contextlib.suppress(ConfigurationError):
        ask_to_stop(service, name)
    deadline = time.monotonic() + _PATIENCE
    while not find_record(service, name).state.final and time.monotonic() < deadline:
        time.sleep(0.1)
    processes.end(attempt.mark(service.home, name))
    service.home.forget_snapshots(name)
    while not find_record(service, name).state.final and time.monotonic() < deadline + _PATIENCE:
        time.sleep(0.1)
