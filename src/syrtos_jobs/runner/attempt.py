"""The runner of a job: one attempt at it, in a process that outlives the service that started it.

`python -m syrtos_jobs.runner.attempt JOB`. It holds a lock in the job's folder for as long as it
lives; a process that finds a running job without the lock knows that its runner is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from syrtos import settings
from syrtos.engines.reservation import NodesLostError
from syrtos.errors import DataError, LaunchError, SyrtosError
from syrtos.launch import generations
from syrtos.launch.outcome import End, Outcome
from syrtos.launch.policy import RestartPolicy
from syrtos.launch.snapshots import AgentSnapshots, LocalSnapshots
from syrtos.launch.terminal.noise import is_noise
from syrtos_jobs.complaints import complain, complain_in_full
from syrtos_jobs.credentials import job_secret, variables
from syrtos_jobs.observation import logs, metrics, series
from syrtos_jobs.requests import secrecy, states
from syrtos_jobs.requests.request import read
from syrtos_jobs.runner import (
    enter,
    job_command,
    notices,
    preparation,
    processes,
    programs,
    versions,
)
from syrtos_jobs.runner.attempt_record import (
    AttemptRecord,
    AttemptSupersededError,
    JobOverError,
    fail,
    keep_small,
    leave_nothing,
)
from syrtos_jobs.runner.failure_reason import failure_reason, unlogged_failures
from syrtos_jobs.runner.reserved_nodes import JobRequester, ReservedNodes, reserved_nodes
from syrtos_jobs.runner.time_limit import TimeLimit
from syrtos_jobs.runner.watch import Watch
from syrtos_jobs.runner.workers import Workers
from syrtos_jobs.storage import artifacts
from syrtos_jobs.storage.artifacts import Checkpoints
from syrtos_jobs.storage.storage_uris import StorageURIs, store_of
from syrtos_jobs.store import runs
from syrtos_jobs.store.home import Home, try_lock
from syrtos_jobs.store.job_store import Store

LOCK = "runner.lock"
_PATIENCE = 3600.0  # seconds that a database may be locked, or away: what is trained is not lost
_LONGEST_END = 240.0  # seconds, twice of what scripts have from SIGTERM on


def main() -> None:
    """Runs the job named on the command line, from the state that its record has."""
    home, name = Home(), sys.argv[1]
    lock = try_lock(home.job(name) / LOCK)
    if lock is None:
        # another runner has the lock
        return
    # until `supervise` has handlers of its own
    signal.signal(signal.SIGTERM, _too_early)
    if home.backups and not home.backups.database.exists():
        complain(f"the database {home.backups.database} is gone; {name} is left as it is.")
        return
    processes.adopt_orphans()
    store = Store(home.database, home.place, _PATIENCE)
    try:
        if home.placement().engine:
            # the folder in which its processes begin must be on all nodes, as this one is
            os.chdir(home.job(name))
        runner = Runner(home, store, name)
    except Exception as error:
        complain_in_full()
        kind = "ClientError" if isinstance(error, SyrtosError) else "InternalServerError"
        fail(store, name, f"{kind}: {error}")
        return
    # no process of the job shall inherit it
    settings.forget_secret()
    secrecy.redact_output(runner.redact)
    runner.run()
    store.close()
    lock.close()


def _too_early(*_: object) -> None:
    """Ignores a signal that comes before there are scripts that it could be passed on to."""


class Runner:
    """An attempt at a job; ``redact`` takes its secrets out of a text."""

    def __init__(self, home: Home, store: Store, name: str) -> None:
        self._home, self._store, self._name = home, store, name
        self._places = StorageURIs(store_of(home, _PATIENCE), home.files())
        self._folders = job_command.Folders(home.job(name), enter.can_isolate())
        record = store.get(name)
        assert record is not None
        self._placement = home.placement()
        self._job = read(
            record.request, programs.drivers_of(record.request, self._places), self._placement.gpus
        )
        self._run_dir = self._folders.run_dir(record.attempts)
        self._restarts_before = states.restarts(record.state.transitions)
        self._streams = logs.of(home.job(name) / "logs")
        secret = job_secret(home, record.access_key)
        self.redact = secrecy.Redactor([secret, *secrecy.secrets_of(record.request)])
        self._record = AttemptRecord(
            store,
            record,
            self.redact,
            self._streams[0],
            self._job.hyperparameters.get("_tuning_objective_metric", ""),
            self._epochs,
        )
        # a job without a network gets none on SageMaker either
        self._credentials = (
            {} if self._job.is_offline else variables(home, record.access_key, secret)
        )
        self._series = series.SeriesRecorder(home.job(name))
        self._watch = Watch(
            store,
            record,
            TimeLimit(self._job.limits.running, record.wait_until),
            self._obey,
            self._record.save,
        )
        self._asked_at = time.monotonic()
        self._trained = self._told = self._failed_inside = self._finished = False
        self._workers: Workers | None = None
        self._requester = JobRequester(
            store, name, lambda: bool(self._record.why), self._lose_nodes
        )

    def run(self) -> None:
        """Downloads, trains and uploads; every outcome is written down."""
        self._watch.start()
        try:
            self._attempt()
        except AttemptSupersededError:
            self._record.say(
                "Another attempt at this job has been asked for, while this one was starting."
            )
        except JobOverError:
            self._record.finish(self._record.why)
        except SyrtosError as error:
            # what was trained stays
            self._failed_inside = isinstance(error, artifacts.UnwritableError)
            kind = "InternalServerError" if isinstance(error, NodesLostError) else "ClientError"
            if self._home.reserve.is_needed():
                self._fail_for_room(str(error))
            else:
                self._record.fail(f"{kind}: {error}")
        except Exception as error:
            # a mistake of ours: the attempt's files may help to find it, and stay. On a full disk
            # they don't, since there is not even room for the traceback
            if self._home.reserve.is_needed() and not self._finished:
                self._fail_for_room(f"{type(error).__name__}: {error}")
                return
            self._home.reserve.release()
            complain_in_full()
            self._record.fail(f"InternalServerError: {type(error).__name__}: {error}")
            self._failed_inside = True
        finally:
            # what scripts have left behind, before their files are removed
            processes.end(mark(self._home, self._name))
            self._watch.close()
            self._record.save()
            if not self._failed_inside:
                leave_nothing(self._home, self._name)

    def _attempt(self) -> None:
        try:
            with reserved_nodes(
                self._job, self._placement, self._home.job(self._name), self._requester
            ) as nodes:
                outcome = self._train_on(nodes)
        except (JobOverError, AttemptSupersededError):
            raise
        except Exception as error:
            if isinstance(error, NodesLostError):
                self._move_to_other_nodes(str(error))
            # what fails after the engine has taken the nodes back does so because of that
            if self._record.why in states.AGAIN or (
                self._record.why and isinstance(error, LaunchError)
            ):
                raise JobOverError from error
            if not self._requester.is_late:
                raise
            self._record.fail(
                f"CapacityError: {self._placement.engine} had no nodes for the job for"
                " MaxPendingTimeInSeconds."
            )
            return
        self._conclude(outcome)

    def _train_on(self, nodes: ReservedNodes | None) -> Outcome:
        self._record.move("Downloading")
        # files of an attempt whose process died
        leave_nothing(self._home, self._name)
        if nodes:
            self._folders = nodes.await_nodes(self._job, self._folders)
        self._folders.make(self._job)
        preparation.write_contract(self._job, self._folders, self._placement.gpus)
        preparation.fill_channels(
            self._job, self._folders, self._places, lambda: bool(self._record.why)
        )
        if self._record.why:
            raise JobOverError
        python = preparation.fetch_program(
            self._job, self._folders, self._places, self._streams[0].write, self._environment()
        )
        kept = self._kept_folders()
        if self._record.why:
            raise JobOverError
        self._say_notices()
        self._describe(python)
        self._record.move("Training")
        return self._train(python, kept, nodes)

    def _conclude(self, outcome: Outcome) -> None:
        """Uploads what there is, and writes down how the job has ended."""
        self._finished = outcome.end is End.FINISHED
        if self._home.reserve.is_needed() and not self._finished and not self._record.why:
            self._fail_for_room(self._reason(outcome))
            return
        if self._record.why in states.AGAIN and self._finished:
            # its nodes were taken back when it had just come to its end
            self._record.why = ""
        # nothing is uploaded: it goes on later from its checkpoints
        if self._record.why in states.AGAIN:
            self._record.finish(self._record.why)
            return
        self._upload(outcome)

    # -- before training -----------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        """Returns the environment of the job's processes, with its mark."""
        return job_command.base_environment(settings.environment(), mark(self._home, self._name))

    def _say_notices(self) -> None:
        for text in notices.of(self._job):
            self._record.say(text)

    def _describe(self, python: Path) -> None:
        """Leaves the attempt's command and versions in its run directory, without secrets."""
        request = secrecy.redact(self._job.request)
        shown = read(request, programs.drivers_of(request, self._places), self._placement.gpus)
        runs.write(self._run_dir, shown, versions.of(python, self._environment()))

    def _kept_folders(self) -> list[Checkpoints]:
        """Returns what copies folders of the instances to their URIs, also while the job runs."""
        kept = (
            []
            if self._job.checkpoints is None
            else [self._restored_checkpoints(self._job.checkpoints[0])]
        )
        if self._job.tensorboard:
            uri, path = self._job.tensorboard
            folders = {
                self._folders.seen(self._job, host, path) for host in range(len(self._job.hosts))
            }
            for folder in folders:
                artifacts.check_inside(folder, self._folders.job, self._job.tensorboard[1])
                folder.mkdir(parents=True, exist_ok=True)
            kept.append(Checkpoints(self._places, uri, sorted(folders)))
        return kept

    def _restored_checkpoints(self, uri: str) -> Checkpoints:
        folders = self._folders.outputs(self._job, "checkpoints")
        checkpoints = Checkpoints(self._places, uri, folders)
        found = checkpoints.restore()
        if found:
            self._record.say(f"{found} files of checkpoints restored from {uri}")
        return checkpoints

    # -- training ------------------------------------------------------------------------------

    def _train(
        self, python: Path, kept: Sequence[Checkpoints], nodes: ReservedNodes | None
    ) -> Outcome:
        variables = self._environment()
        takers = [self._taker(stream) for stream in self._streams]
        self._workers = Workers(
            self._job,
            self._folders,
            self._places,
            python,
            variables,
            self._credentials,
            takers,
            self._placement.gpus,
            nodes,
        )
        for each in kept:
            each.start()
        try:
            outcome = self._generations(self._workers, nodes)
            if (
                nodes
                and not self._record.why
                and outcome.end is not End.FINISHED
                and nodes.confirm_loss(outcome)
            ):
                self._move_to_other_nodes(str(outcome))
        finally:
            # what is asked for from now on does not change how the job ends: its results are
            # uploaded
            self._trained = True
            self._keep_record()
            # the files to which the job's processes have written
            self._record.redact.redact_folder(self._home.job(self._name))
            for each in kept:
                each.finish()
        if self._workers.channel_error and not self._record.why:
            raise DataError(
                f"A channel could not be streamed to its end: {self._workers.channel_error}"
            ) from self._workers.channel_error
        return outcome

    def _keep_record(self) -> None:
        """Keeps the ledgers of a run that the job's driver started, for the attempt's report."""
        if self._job.program and self._job.program.driven:
            left_out = shutil.ignore_patterns("run.json", "snapshots", "logs", ".lock")
            # without such a folder, the driver has not come so far as to train
            with contextlib.suppress(OSError):
                shutil.copytree(
                    self._folders.driven_run_dir(self._job),
                    self._run_dir,
                    ignore=left_out,
                    dirs_exist_ok=True,
                )

    def _generations(self, workers: Workers, nodes: ReservedNodes | None) -> Outcome:
        """Trains once, or in generations of workers if the job asks for retries and workers die."""
        restarts = job_command.restarts(self._job, self._folders) - self._restarts_before
        if restarts <= 0:
            return workers.run(self._run_dir, {})
        ends: list[Outcome] = []

        def start(folder: Path, variables: Callable[[int], Mapping[str, str]]) -> Outcome:
            if ends and not self._may_restart(ends[-1]):
                return dataclasses.replace(ends[-1], end=End.STOPPED)
            self._run_dir, self._told = folder, False
            ends.append(workers.run(folder, variables(self._job.slots)))
            return ends[-1]

        seed = random.SystemRandom().randrange(2**31)
        snapshots = (
            AgentSnapshots(nodes.agents)
            if nodes
            else LocalSnapshots(self._home.new_snapshot_memory(self._name))
        )
        ended = generations.run(
            start, snapshots, self._run_dir, RestartPolicy(restarts), seed, durable=False,
            say=lambda text: self._record.say(f"syrtos: {text}"),
        )  # fmt: skip
        if ended.reason:
            self._record.say(f"syrtos: no restart: {ended.reason}.")
        return ended.outcome

    def _move_to_other_nodes(self, why: str) -> None:
        """Has the job started again on other nodes, from its checkpoints.

        The job is not started again if that was done too often already.
        """
        asked = (self._job.request.get("RetryStrategy") or {}).get(
            "MaximumRetryAttempts", states.RESTARTS
        )
        record = self._store.get(self._name)
        if self._record.why or record is None or states.restarts(record.state.transitions) >= asked:
            return
        self._record.why, self._record.why_again = "Restarting", why
        self._record.say(
            f"syrtos: {why} The job is started again on other nodes, from its checkpoints."
        )

    def _lose_nodes(self, why: str, again: bool) -> None:
        """Has the job started again once the engine that took its nodes back gives it others."""
        # what it has trained is uploaded without them
        if self._trained or self._record.why:
            return
        if again and self._workers is None:
            # it has not trained: were that not counted, it might go on for ever
            self._move_to_other_nodes(f"{why}.")
            return
        self._record.why, self._record.why_again = (
            ("Interrupted", why) if again else ("Stopped", "")
        )
        # a full disk takes no line
        with contextlib.suppress(OSError):
            self._record.say(
                f"syrtos: {why}."
                + " The job waits for others, and then goes on from its checkpoints." * again
            )

    def _may_restart(self, last: Outcome) -> bool:
        """Records that workers are started again after ``last``; False if the job is to end."""
        # the generation before has written why it failed; that must not count for the next
        for host in range(len(self._job.hosts)):
            self._folders.failure(host).unlink(missing_ok=True)
        return self._record.restart_workers(last)

    def _taker(self, stream: logs.LogStream) -> Callable[[list[str]], None]:
        def take(lines: list[str]) -> None:
            stream.write(
                [self._record.redact(line) for line in lines if not is_noise(line.encode())]
            )
            self._series.add(self._record.metrics.take(lines))
            for complaint in self._record.metrics.new_complaints():
                self._record.say(f"syrtos: {complaint}")

        return take

    # -- after training ------------------------------------------------------------------------

    def _upload(self, outcome: Outcome) -> None:
        if self._job.distribution.kind != "copies" and not self._record.why:
            for text in unlogged_failures(outcome, self._run_dir):
                self._record.say(text)
        self._record.move("Uploading")
        compressed = self._job.request["OutputDataConfig"].get("CompressionType") != "NONE"
        for name, archive in (("model", "model.tar.gz"), ("output/data", "output.tar.gz")):
            folders = self._folders.outputs(self._job, name)
            uri = self._job.artifacts + ("" if compressed else f"/{archive.partition('.')[0]}")
            packed = archive if compressed else None
            with artifacts.writing(uri, folders):
                artifacts.upload(self._places, folders, uri, packed, self._folders.job)
        if self._record.why:
            self._record.finish(self._record.why)
        elif outcome.end is not End.FINISHED:
            self._record.fail(self._reason(outcome))
        else:
            self._record.finish("Completed")

    def _reason(self, outcome: Outcome) -> str:
        return failure_reason(self._job, self._folders, outcome, self._streams[0])

    # -- requests from outside ------------------------------------------------------------------

    def _obey(self, why: str) -> None:
        """Ends the workers, and at last this process, once something asks for the job's end."""
        if why and not self._trained:
            self._record.why = self._record.why or why
        workers = self._workers
        if (
            workers
            and workers.running
            and (self._record.why or workers.channel_error)
            and not self._told
            and signal.getsignal(signal.SIGTERM) is not _too_early
        ):
            self._told = True
            # `supervise`, in the main thread, passes it on to the workers
            os.kill(os.getpid(), signal.SIGTERM)
        if not self._record.why or self._trained:
            self._asked_at = time.monotonic()
        elif time.monotonic() > self._asked_at + _LONGEST_END:
            self._end_at_once()

    def _end_at_once(self) -> None:
        """Ends the job and this process, whose main thread hangs in something."""
        processes.end(mark(self._home, self._name))
        fault = f"syrtos: the job did not end within {_LONGEST_END:.0f} seconds; it is ended now."
        with contextlib.suppress(OSError):
            self._record.say(fault)
        self._record.finish(self._record.why)
        os._exit(1)

    # -- the record ----------------------------------------------------------------------------

    def _fail_for_room(self, reason: str) -> None:
        """Fails a job that has met a full disk.

        The job's files are removed first, so that there is room for its record.
        """
        models = self._folders.outputs(self._job, "model")
        kept = keep_small(models, self._run_dir / "model", self._home.reserve)
        leave_nothing(self._home, self._name)
        shutil.rmtree(self._run_dir / "logs", ignore_errors=True)
        for stream in self._streams:
            stream.cut()
        self._home.reserve.release()
        self._record.fail(
            f"ClientError: the disk of {self._home.path} is full (ENOSPC,"
            f" {os.strerror(errno.ENOSPC)}). {reason}{kept}"
        )

    def _epochs(self) -> list[metrics.EpochFacts]:
        """Returns the facts about the epochs that the attempt has trained so far."""
        driven = self._job.program is not None and self._job.program.driven and not self._trained
        return metrics.epochs(self._folders.driven_run_dir(self._job) if driven else self._run_dir)


def mark(home: Home, name: str) -> str:
    """Returns the mark in the environment of this job's processes."""
    return f"{home.path}/{name}"


if __name__ == "__main__":
    main()
