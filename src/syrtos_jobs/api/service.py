"""The implementation of SageMaker's training operations.

Each takes and returns the parameters of its operation as Python values. Requests have been
validated by SageMaker's service model; times are seconds since 1970.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from syrtos.errors import ConfigurationError, DataError
from syrtos_jobs.credentials import new_access_key
from syrtos_jobs.observation import logs, metrics
from syrtos_jobs.placement import UNLIMITED, Placement
from syrtos_jobs.requests import states
from syrtos_jobs.requests.hyperparameters import source_of
from syrtos_jobs.requests.request import InputChannel, Job, read
from syrtos_jobs.requests.secrecy import redact
from syrtos_jobs.runner import enter
from syrtos_jobs.runner.programs import drivers_of
from syrtos_jobs.storage.objects import ObjectStore
from syrtos_jobs.storage.storage_uris import StorageURIs
from syrtos_jobs.store.home import ACCOUNT, REGION, Home
from syrtos_jobs.store.job_store import Record, Store, columns
from syrtos_jobs.store.tunings import TuningRecord, Tunings

if TYPE_CHECKING:
    from sqlalchemy import Column, ColumnElement
    from sqlalchemy.sql.base import ReadOnlyColumnCollection

    from syrtos_jobs.requests.shapes import Tag


class ApiError(Exception):
    """An error that SageMaker would answer.

    Attributes:
        code: botocore's name of the error.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Service:
    """The training jobs of one home.

    Args:
        capacity: the number of workers that may run at the same time.
        places: the URIs that requests may name.
        placement: where the jobs run; None: on this machine.
    """

    def __init__(
        self,
        home: Home,
        store: Store,
        places: StorageURIs,
        capacity: int,
        placement: Placement | None = None,
    ) -> None:
        self.home, self.store, self.places, self.capacity = home, store, places, capacity
        self.placement = placement or Placement()
        self.tunings = Tunings(home.database, home.place)

    @property
    def limit(self) -> int | None:
        """Returns how many workers may run at once; None where the engine alone decides."""
        return None if self.capacity == UNLIMITED else self.capacity

    @property
    def objects(self) -> ObjectStore:
        """The object store of ``s3://``."""
        return self.places.objects

    # -- operations ----------------------------------------------------------------------------

    def create_training_job(self, request: dict[str, Any]) -> dict[str, object]:
        """Writes down a job, which runs as soon as there are workers for it."""
        name, now, job = request["TrainingJobName"], time.time(), self.check_request(request)
        record = Record(
            name=name,
            request=request,
            tags={tag["Key"]: tag["Value"] for tag in request.get("Tags") or ()},
            state=states.initial_state(now),
            created=now,
            modified=now,
            slots=job.slots,
            spot=job.spot,
            access_key=new_access_key(),
            begin_until=now + job.limits.pending if job.limits.pending else None,
            wait_until=now + job.limits.waiting if job.spot and job.limits.waiting else None,
        )
        folder = self.home.job(name)
        # the streams of a job that exists must not be touched
        if self.store.get(name) is not None:
            raise _in_use(name)
        # before the row: once that is there, the queue may start the job, and clients ask for its
        # streams
        logs.make(folder / "logs", job.hosts, now)
        if not self.store.add(record):
            raise _in_use(name)
        return {"TrainingJobArn": arn(name)}

    def check_request(self, request: Mapping[str, Any]) -> Job:
        """Reads and checks a request for a training job.

        Raises:
            ApiError: it asks for something that can't be done here.
        """
        name = request["TrainingJobName"]
        # the service's model says so too, but not every request comes through it, and the name will
        # be a folder's
        if not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", name):
            raise ApiError(
                "ValidationException",
                f"A job's name has letters, digits and hyphens, up to 63. Received: {name!r}.",
            )
        try:
            self._check_uris(request)
            job = read(request, drivers_of(request, self.places), self.placement.gpus)
            # made only to find out whether the regular expressions can be read
            metrics.Metrics(
                (request.get("AlgorithmSpecification") or {}).get("MetricDefinitions") or ()
            )
            self._check_folders(job.channels)
            _check_network(job)
            if self.placement.engine:
                _check_for_nodes(job, self.placement.engine)
        except (ConfigurationError, DataError) as error:
            raise ApiError("ValidationException", str(error)) from error
        if job.slots > self.capacity:
            raise ApiError(
                "ResourceLimitExceeded",
                f"The job needs {job.slots} workers ({len(job.hosts)} instances with"
                f" {job.distribution.per_host}), and this service has {self.capacity}. Ask for"
                f" fewer, or start it with `syrtos serve --capacity {job.slots}`.",
            )
        return job

    def describe_training_job(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Returns everything about a job."""
        return describe_job(self._find_record(request["TrainingJobName"]))

    def list_training_jobs(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a page of jobs."""
        order = {"Name": columns.name, "Status": columns.status}.get(
            request.get("SortBy", ""), columns.created
        )
        descending = request.get("SortOrder") == "Descending"
        sorting = [
            order.desc() if descending else order,
            columns.name.desc() if descending else columns.name,
        ]
        limit, after = request.get("MaxResults") or 10, page_of(request.get("NextToken"))
        found, following = self.store.find(conditions(request), sorting, after, limit)
        answer: dict[str, object] = {"TrainingJobSummaries": [_summary(record) for record in found]}
        return answer | ({"NextToken": str(following)} if following is not None else {})

    def stop_training_job(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Asks a job to end: its scripts get SIGTERM, and have two minutes."""
        record = self._find_record(request["TrainingJobName"])
        if record.state.final:
            raise ApiError(
                "ValidationException",
                "The request was rejected because the training job is in status"
                f" {record.state.status}.",
            )
        self.store.change(record.name, _mark_stopping)
        return {}

    def update_training_job(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Records the settings that may change while a job runs.

        The settings have no effect on one's own machine.
        """
        record = self._find_record(request["TrainingJobName"])
        wanted = {
            name: request[name]
            for name in ("ProfilerConfig", "RemoteDebugConfig")
            if name in request
        }
        kept = request.get("ResourceConfig", {})
        resources = {**record.request["ResourceConfig"], **kept}
        new = {**record.request, **wanted, "ResourceConfig": resources}
        self.store.change(
            record.name, lambda r: dataclasses.replace(r, request=new, modified=time.time())
        )
        return {"TrainingJobArn": arn(record.name)}

    def delete_training_job(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Deletes a job that has ended, with its logs; uploaded objects stay."""
        record = self._find_record(request["TrainingJobName"])
        if not record.state.final:
            raise ApiError(
                "ResourceInUse",
                f"Training job {record.name} is {record.state.status}: {before_deletion(record.state.status)}.",
            )
        tuning = self.tunings.get(record.request.get("TuningJobArn", "").rpartition("/")[2])
        if tuning and not tuning.final:
            raise ApiError(
                "ResourceInUse",
                f"Training job {record.name} belongs to tuning job {tuning.name}, which goes on:"
                " stop that first.",
            )
        # renamed first: a new job may have the name at once, while the files of this one are still
        # being removed
        gone = self.home.jobs / f".{record.name}-{secrets.token_hex(4)}"
        with contextlib.suppress(FileNotFoundError):
            self.home.job(record.name).rename(gone)
        self.store.remove(record.name)
        shutil.rmtree(gone, ignore_errors=True)
        return {}

    def add_tags(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Adds tags to a job, or replaces them."""
        new = {tag["Key"]: tag["Value"] for tag in request["Tags"]}
        record = self._of_arn(request["ResourceArn"])
        if len({**record.tags, **new}) > 50:
            raise ApiError("ResourceLimitExceeded", "A job has at most 50 tags.")
        self._tag(record, lambda tags: {**tags, **new})
        return {"Tags": _tags({**record.tags, **new})}

    def list_tags(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a page of a job's tags."""
        tags = _tags(self._of_arn(request["ResourceArn"]).tags)
        after, limit = page_of(request.get("NextToken")), request.get("MaxResults") or 50
        more = {"NextToken": str(after + limit)} if len(tags) > after + limit else {}
        return {"Tags": tags[after : after + limit], **more}

    def delete_tags(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Removes tags from a job."""
        gone = {*request["TagKeys"]}
        self._tag(
            self._of_arn(request["ResourceArn"]),
            lambda tags: {k: v for k, v in tags.items() if k not in gone},
        )
        return {}

    # -- helpers -------------------------------------------------------------------------------

    def _find_record(self, name: str) -> Record:
        record = self.store.get(name)
        if record is None:
            raise ApiError("ValidationException", "Requested resource not found.")
        return record

    def _of_arn(self, text: str) -> Record | TuningRecord:
        kind, _, name = text.rpartition(":")[2].partition("/")
        stores = {"training-job": self.store, "hyper-parameter-tuning-job": self.tunings}
        record = stores[kind].get(name) if kind in stores else None
        if record is None:
            raise ApiError("ValidationException", f"Resource {text} does not exist.")
        return record

    def _tag(
        self, record: Record | TuningRecord, how: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        if isinstance(record, TuningRecord):
            self.tunings.change(record.name, lambda r: dataclasses.replace(r, tags=how(r.tags)))
        else:
            self.store.change(record.name, lambda r: dataclasses.replace(r, tags=how(r.tags)))

    def _check_folders(self, channels: Sequence[InputChannel]) -> None:
        """Raises DataError for a file or folder of this machine that does not exist."""
        # objects of a store may still come while the job waits; a folder with a wrong name will not
        for channel in channels:
            if channel.uri.startswith("file://") and not self.places.exists(channel.uri):
                raise DataError(
                    f"Channel {channel.name}: there is no file or folder"
                    f" {channel.uri.removeprefix('file://')} with data."
                )

    def _check_uris(self, request: Mapping[str, Any]) -> None:
        sources = [channel["DataSource"] for channel in request.get("InputDataConfig") or ()]
        uris = [source["S3DataSource"]["S3Uri"] for source in sources if "S3DataSource" in source]
        uris += [
            "file://" + s["FileSystemDataSource"]["DirectoryPath"]
            for s in sources
            if "FileSystemDataSource" in s
        ]
        uris += [
            (request.get("OutputDataConfig") or {}).get("S3OutputPath"),
            (request.get("CheckpointConfig") or {}).get("S3Uri"),
            (request.get("TensorBoardOutputConfig") or {}).get("S3OutputPath"),
        ]
        code = source_of(request.get("HyperParameters") or {})
        # source without a scheme is a path of the instance, and not of this machine
        for uri in filter(None, [*uris, code if "://" in code else ""]):
            self.places.allow(uri)


def _check_network(job: Job) -> None:
    """Raises ConfigurationError if a job may have no network and the kernel can't take it away."""
    if job.is_offline and not enter.can_leave_network():
        raise ConfigurationError(
            "EnableNetworkIsolation can't be enforced here: the kernel lets this user make no"
            " network namespaces (user_namespaces(7)). Allow them, run the service as root, or"
            " leave it out."
        )


def _check_for_nodes(job: Job, engine: str) -> None:
    """Refuses what instances on nodes of their own can't have.

    Raises:
        ConfigurationError: the job asks for it.
    """
    if piped := [channel.name for channel in job.channels if channel.mode == "Pipe"]:
        raise ConfigurationError(
            f"Channel {piped[0]} asks for Pipe mode, and jobs of this service run on nodes of"
            f" {engine}, to which no pipe leads. Use FastFile or File."
        )
    if job.is_offline and len(job.hosts) > 1:
        raise ConfigurationError(
            f"EnableNetworkIsolation would take from the {len(job.hosts)} instances, which are on"
            f" nodes of {engine}, the network by which they train together. Use one instance, or"
            " leave it out."
        )


def arn(name: str) -> str:
    """Returns a job's ARN, its name within all of AWS."""
    return f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/{name}"


_ECHOED = (
    "HyperParameters", "AlgorithmSpecification", "RoleArn", "InputDataConfig", "OutputDataConfig", "ResourceConfig", "VpcConfig",
    "StoppingCondition", "EnableNetworkIsolation", "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining",
    "CheckpointConfig", "DebugHookConfig", "ExperimentConfig", "DebugRuleConfigurations", "TensorBoardOutputConfig",
    "ProfilerConfig", "ProfilerRuleConfigurations", "Environment", "RetryStrategy", "RemoteDebugConfig", "InfraCheckConfig", "TuningJobArn",
)  # fmt: skip


def describe_job(record: Record) -> dict[str, object]:
    """Returns DescribeTrainingJob's answer."""
    request, state = redact(record.request), record.state
    answer = {name: request[name] for name in _ECHOED if name in request}
    answer |= {
        # SDK v2's `attach` reads the key of encryption, whether there is one or not
        "OutputDataConfig": {"KmsKeyId": "", **request["OutputDataConfig"]},
        "TrainingJobName": record.name,
        "TrainingJobArn": arn(record.name),
        "TrainingJobStatus": state.status,
        "SecondaryStatus": state.secondary,
        "SecondaryStatusTransitions": list(state.transitions),
        "StoppingCondition": request.get("StoppingCondition") or {"MaxRuntimeInSeconds": 86400},
        "ModelArtifacts": {"S3ModelArtifacts": model_uri(record)},
        "CreationTime": record.created,
        "LastModifiedTime": max(record.modified, state.transitions[-1]["StartTime"]),
    }
    if record.failure:
        answer["FailureReason"] = record.failure
    if record.metrics:
        answer["FinalMetricDataList"] = [
            {"MetricName": name, "Value": value, "Timestamp": when}
            for name, (value, when) in record.metrics.items()
        ]
    if record.progress:
        answer["ProgressInfo"] = record.progress
    if request["ResourceConfig"].get("KeepAlivePeriodInSeconds") and state.final:
        answer["WarmPoolStatus"] = {"Status": "Terminated"}
    return answer | _times(record)


def model_uri(record: Record) -> str:
    """Returns the URI of a job's model, also before the model exists."""
    output = record.request["OutputDataConfig"]
    folder = f"{output['S3OutputPath'].rstrip('/')}/{record.name}/output"
    return (
        f"{folder}/model" if output.get("CompressionType") == "NONE" else f"{folder}/model.tar.gz"
    )


def _times(record: Record) -> dict[str, object]:
    began = [t["StartTime"] for t in record.state.transitions if t["Status"] == "Downloading"]
    if not began:
        return {}
    now = time.time()
    worked = states.seconds_in(
        record.state.transitions, ("Downloading", "Training", "Stopping", "Uploading"), now
    )
    ended = (
        {"TrainingEndTime": record.state.transitions[-1]["StartTime"]} if record.state.final else {}
    )
    return {
        "TrainingStartTime": began[0],
        **ended,
        "TrainingTimeInSeconds": max(int(worked), 1),
        "BillableTimeInSeconds": max(int(worked), 1),
    }


def _summary(record: Record) -> dict[str, object]:
    ended = (
        {"TrainingEndTime": record.state.transitions[-1]["StartTime"]} if record.state.final else {}
    )
    return {
        "TrainingJobName": record.name,
        "TrainingJobArn": arn(record.name),
        "CreationTime": record.created,
        "LastModifiedTime": record.modified,
        "TrainingJobStatus": record.state.status,
        "SecondaryStatus": record.state.secondary,
        **ended,
    }


def conditions(
    request: Mapping[str, Any], columns: ReadOnlyColumnCollection[str, Column[Any]] = columns
) -> list[ColumnElement[bool]]:
    """Returns the conditions of a request that lists jobs, in terms of their table's columns."""
    found = []
    for name, column, after in (
        ("CreationTimeAfter", columns.created, True), ("CreationTimeBefore", columns.created, False),
        ("LastModifiedTimeAfter", columns.modified, True), ("LastModifiedTimeBefore", columns.modified, False),
    ):  # fmt: skip
        if name in request:
            found.append(column >= request[name] if after else column <= request[name])
    if "NameContains" in request:
        found.append(columns.name.contains(request["NameContains"], autoescape=True))
    if "StatusEquals" in request:
        found.append(columns.status == request["StatusEquals"])
    return found


def _mark_stopping(record: Record) -> Record | None:
    if record.state.final or record.state.status == "Stopping":
        return None
    # a job that uploads has trained, and ends by itself
    return record.with_transition("Stopping") if record.state.secondary != "Uploading" else None


def _tags(tags: Mapping[str, str]) -> list[Tag]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def before_deletion(status: str) -> str:
    """Returns what is to come before a job of this status, which has not ended, can be deleted."""
    return "wait until it has stopped" if status == "Stopping" else "stop it first"


def page_of(token: str | None) -> int:
    """Returns the offset of the page that a ``NextToken`` names; 0 without a token.

    Raises:
        ApiError: this service has not given the token.
    """
    if token is None:
        return 0
    if not token.isdecimal() or len(token) > 15:
        raise ApiError(
            "ValidationException", "The NextToken is not one that this service has given."
        )
    return int(token)


def _in_use(name: str) -> ApiError:
    return ApiError(
        "ResourceInUse",
        f"Training job names must be unique: there is a job {name} already. Choose another name.",
    )
