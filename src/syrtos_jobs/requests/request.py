"""The parts of a CreateTrainingJob request in syrtos's terms: a pure function of the request."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal, cast

from syrtos.errors import ConfigurationError
from syrtos.settings import BatchMode
from syrtos_jobs.requests.hyperparameters import arguments_v2, decode, of_script, source_of
from syrtos_jobs.requests.shapes import ChannelFacts, Drivers, Resources, TrainingRequest

ML = PurePosixPath("/opt/ml")
Kind = Literal[
    "none", "mpi", "smdataparallel", "parameter_server", "multi_worker_mirrored_strategy", "copies"
]


@dataclasses.dataclass(frozen=True)
class InputChannel:
    """An input of a job.

    Attributes:
        name: the folder under ``/opt/ml/input/data``.
        uri: ``s3://bucket/prefix``, ``file:///path``, or the URI of a manifest.
        kind: ``S3Prefix``, ``ManifestFile``, ``AugmentedManifestFile`` or ``FileSystem``.
        mode: ``File``, ``FastFile`` or ``Pipe``.
        sharded: whether each instance gets its part of the objects instead of all.
        record_io: in Pipe mode, whether each object becomes one RecordIO record.
        gzip: in Pipe mode, whether objects are unpacked.
        seed: seed of the order of objects, which is a new one each epoch in Pipe mode; None: by
            name.
        attributes: the attributes to read from an augmented manifest's lines, in this order.
        config: the channel's entry in ``inputdataconfig.json``.
    """

    name: str
    uri: str
    kind: str
    mode: str
    sharded: bool
    record_io: bool
    gzip: bool
    seed: int | None
    attributes: tuple[str, ...]
    config: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Distribution:
    """The way in which the instances of a job train together.

    Attributes:
        kind: the name of SageMaker's setting; ``copies``: unconnected processes of a command that
            syrtos does not know.
        per_host: workers on each instance. A job's own driver starts them; else of a command each
            instance runs one copy.
        variables: environment variables that the job's MPI options ask for (``-x NAME=VALUE``).
    """

    kind: Kind = "none"
    per_host: int = 1
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def processes(self) -> int:
        """The number of processes that syrtos starts on each instance."""
        return 1 if self.kind == "copies" else self.per_host


@dataclasses.dataclass(frozen=True)
class JobProgram:
    """A script that syrtos starts itself, as SageMaker's toolkits would.

    Attributes:
        entry: the file, relative to its source folder.
        source: the place of ``sourcedir.tar.gz``; empty: the source is the channel ``code``.
        arguments: the arguments of its command line.
        requirements: a pip requirements file in the source folder, installed if it exists; empty:
            none.
        driven: whether the job brings the driver that starts the script: `syrtos.sagemaker.Syrtos`.
            The job's command then runs on each instance, as on SageMaker.
    """

    entry: str
    source: str
    arguments: tuple[str, ...]
    requirements: str = "requirements.txt"
    driven: bool = False

    @property
    def is_python(self) -> bool:
        """Returns whether workers can run the script; any other file is a command of the shell."""
        return self.entry.endswith(".py")

    @property
    def folder(self) -> str:
        """The folder of the instance in which the source is unpacked and the script starts."""
        return "/opt/ml/code" if self.source else "/opt/ml/input/data/code"


@dataclasses.dataclass(frozen=True)
class Job:
    """A training job, read from its request.

    Attributes:
        name: the job's name.
        request: the whole request, unchanged.
        hosts: ``algo-1``, ``algo-2``, ...
        hyperparameters: all hyperparameters, as the texts that were given.
        program: the training script and its source; None: ``command`` is run on each instance.
        command: the container's entry point and arguments.
        limits: seconds of running, of waiting and running (spot jobs), and of waiting.
    """

    name: str
    request: TrainingRequest
    hosts: tuple[str, ...]
    channels: tuple[InputChannel, ...]
    hyperparameters: Mapping[str, str]
    distribution: Distribution
    program: JobProgram | None
    command: tuple[str, ...]
    spot: bool
    limits: TimeLimits

    @property
    def slots(self) -> int:
        """The number of workers that the job occupies."""
        return len(self.hosts) * self.distribution.per_host

    @property
    def batch(self) -> BatchMode:
        """The meaning of a batch: global or per worker.

        It is global if instances see the same files, and per worker with a sharded channel.
        """
        # with a sharded channel each instance has other records, so the script means its own batch
        sharded = len(self.hosts) > 1 and any(channel.sharded for channel in self.channels)
        return "per-worker" if sharded else "global"

    @property
    def tensorboard(self) -> tuple[str, str] | None:
        """The URI at which TensorBoard's files are kept, and the folder that the script writes to.

        The value is None if the files are kept nowhere.
        """
        config = self.request.get("TensorBoardOutputConfig")
        if not config:
            return None
        # where SDK v2 looks for them (estimator.latest_job_tensorboard_artifacts_path)
        uri = f"{config['S3OutputPath'].rstrip('/')}/{self.name}/tensorboard-output"
        return uri, (config.get("LocalPath") or "/opt/ml/output/tensorboard").rstrip("/")

    @property
    def is_offline(self) -> bool:
        """Returns whether its processes may reach nothing but each other."""
        return bool(self.request.get("EnableNetworkIsolation"))

    @property
    def unconnected(self) -> str:
        """The command that several instances run without a connection to each other; else empty."""
        # not copies that were asked for by SYRTOS_DISTRIBUTION, nor those of a driver, which
        # connects them
        wanted = (self.request.get("Environment") or {}).get("SYRTOS_DISTRIBUTION") == "none"
        driven = self.program is not None and self.program.driven
        if self.distribution.kind != "copies" or len(self.hosts) < 2 or wanted or driven:
            return ""
        return self.program.entry if self.program else " ".join(self.command)

    @property
    def artifacts(self) -> str:
        """The URI that the job's outputs go to: a prefix without a slash at its end."""
        return f"{self.request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{self.name}/output"

    @property
    def checkpoints(self) -> tuple[str, str] | None:
        """The URI at which checkpoints are kept, and the folder to which the script writes them.

        The value is None if no checkpoints are kept.
        """
        config = self.request.get("CheckpointConfig")
        return (
            (config["S3Uri"].rstrip("/"), config.get("LocalPath") or "/opt/ml/checkpoints")
            if config
            else None
        )


@dataclasses.dataclass(frozen=True)
class TimeLimits:
    """A job's limits of time in seconds; None: no limit."""

    running: float
    waiting: float | None
    pending: float | None


def read(request: Mapping[str, Any], drivers: Mapping[str, object], gpus: int = 0) -> Job:
    """Reads a request that is valid by SageMaker's service model.

    Args:
        request: CreateTrainingJob's parameters.
        drivers: the JSON files of channel ``sm_drivers`` by name, with which SDK v3 describes the
            script; empty without them.
        gpus: the number of GPUs of each instance.

    Raises:
        ConfigurationError: it asks for something that can't be done here.
    """
    _check(request, drivers)
    # SageMaker's service model has been checked, which pyright can't see
    return _read_checked(cast(TrainingRequest, request), cast(Drivers, drivers), gpus)


def _read_checked(request: TrainingRequest, drivers: Drivers, gpus: int) -> Job:
    algorithm, resources = request["AlgorithmSpecification"], request["ResourceConfig"]
    hyperparameters = dict(request.get("HyperParameters") or {})
    command = (*algorithm.get("ContainerEntrypoint", ()), *algorithm.get("ContainerArguments", ()))
    program = _program(request, drivers, command)
    if program is None and not command:
        raise ConfigurationError(
            "The request names no script: set the hyperparameters sagemaker_program and"
            " sagemaker_submit_directory (as `TensorFlow(entry_point=...)` does), or"
            " AlgorithmSpecification.ContainerEntrypoint. syrtos runs no container images."
        )
    # commands that syrtos does not start as workers, or is told to leave alone
    copies = (
        program is None
        or not program.is_python
        or program.driven
        or (request.get("Environment") or {}).get("SYRTOS_DISTRIBUTION") == "none"
    )
    distribution = (
        _distribution_v3(drivers, gpus) if drivers else _distribution_v2(hyperparameters, gpus)
    )
    mode = algorithm["TrainingInputMode"]
    stop = request.get("StoppingCondition") or {}
    return Job(
        name=request["TrainingJobName"],
        request=request,
        hosts=tuple(f"algo-{k + 1}" for k in range(_instances(resources))),
        channels=tuple(_channel(channel, mode) for channel in request.get("InputDataConfig") or ()),
        hyperparameters=hyperparameters,
        distribution=_copies(program, distribution) if copies else distribution,
        program=program,
        command=command,
        spot=bool(request.get("EnableManagedSpotTraining")),
        limits=TimeLimits(
            stop.get("MaxRuntimeInSeconds", 86400),
            stop.get("MaxWaitTimeInSeconds"),
            stop.get("MaxPendingTimeInSeconds"),
        ),
    )


def _program(
    request: TrainingRequest, drivers: Drivers, command: Sequence[str]
) -> JobProgram | None:
    """Returns the script that syrtos starts itself; None if the request's command runs instead."""
    hyperparameters = request.get("HyperParameters") or {}
    # SDK v3's tuner sends its drivers without a command that would start them, and names the script
    # as SDK v2 does
    of_tuner = not command and "_tuning_objective_metric" in hyperparameters
    if drivers and not of_tuner:
        return _program_v3(request, drivers)
    # an entry point in the request replaces that of an image, also where hyperparameters name a
    # script
    return None if command else _program_v2(hyperparameters)


def _copies(program: JobProgram | None, distribution: Distribution) -> Distribution:
    return Distribution("copies", distribution.per_host if program and program.driven else 1)


def _check(request: Mapping[str, Any], drivers: Mapping[str, object]) -> None:
    """Checks the conditions that SageMaker's service model leaves open and that every job needs."""
    missing = [
        name
        for name in ("AlgorithmSpecification", "ResourceConfig", "OutputDataConfig")
        if name not in request
    ]
    if missing:
        raise ConfigurationError(f"A training job needs {', '.join(missing)}.")
    if not all(isinstance(part, Mapping) for part in drivers.values()):
        raise ConfigurationError(
            "The files of the channel sm_drivers must be JSON objects, as SageMaker's SDK writes"
            " them."
        )
    for part in ("HyperParameters", "Environment"):
        for name, value in (request.get(part) or {}).items():
            if "\0" in name + value or not _has_bytes(name + value):
                raise ConfigurationError(
                    f"{part}: {name!r} has a character that no command line can hold (NUL, or half"
                    " of a surrogate pair). Encode the value, e.g. by base64."
                )
    for part in ("CheckpointConfig", "TensorBoardOutputConfig"):
        path = (request.get(part) or {}).get("LocalPath")
        if path:
            _check_local_path(part, path)
    # a name becomes a folder under /opt/ml/input/data
    names = [channel["ChannelName"] for channel in request.get("InputDataConfig") or ()]
    if len(set(names)) < len(names) or {".", ".."} & set(names):
        raise ConfigurationError(
            f"Each channel needs a name of its own. Received: {', '.join(names)}."
        )


def _has_bytes(text: str) -> bool:
    """Returns whether a text is one in UTF-8: JSON may hold lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_local_path(part: str, given: str) -> None:
    path = PurePosixPath(given)
    above = path == PurePosixPath("/") or path in (ML, ML.parent)
    if not path.is_absolute() or ".." in path.parts or "\0" in given or above:
        raise ConfigurationError(
            f"{part}.LocalPath is the absolute path of a folder, without `..`, below {ML} or beside"
            f" it. Received: {given!r}."
        )


def _instances(resources: Resources) -> int:
    groups = resources.get("InstanceGroups")
    count = (
        sum(group["InstanceCount"] for group in groups)
        if groups
        else resources.get("InstanceCount") or 0
    )
    if not 1 <= count <= 64:
        raise ConfigurationError(f"A job has 1 to 64 instances. Received: {count}.")
    return count


def _channel(channel: ChannelFacts, mode: str) -> InputChannel:
    source = channel["DataSource"]
    s3, files = source.get("S3DataSource"), source.get("FileSystemDataSource")
    if s3:
        uri, kind = s3["S3Uri"], s3["S3DataType"]
    elif files:
        uri, kind = "file://" + files["DirectoryPath"], "FileSystem"
    else:
        raise ConfigurationError(
            f"Channel {channel['ChannelName']} has neither an S3DataSource nor a"
            " FileSystemDataSource."
        )
    if not uri.startswith(("s3://", "file://")) or kind == "Converse":
        raise ConfigurationError(
            f"Channel {channel['ChannelName']} reads {uri} ({kind}): syrtos reads s3:// and"
            " file://."
        )
    mode = channel.get("InputMode") or mode
    if kind == "AugmentedManifestFile" and mode != "Pipe":
        raise ConfigurationError(
            f"Channel {channel['ChannelName']}: an AugmentedManifestFile needs InputMode Pipe."
        )
    sharded = s3 is not None and s3.get("S3DataDistributionType") == "ShardedByS3Key"
    wrapper = channel.get("RecordWrapperType") or "None"
    config = {
        "TrainingInputMode": mode,
        "S3DistributionType": "ShardedByS3Key" if sharded else "FullyReplicated",
        "RecordWrapperType": wrapper,
    }
    content = channel.get("ContentType")
    config |= {"ContentType": content} if content else {}
    return InputChannel(
        name=channel["ChannelName"],
        uri=uri,
        kind=kind,
        mode=mode,
        sharded=sharded,
        record_io=wrapper == "RecordIO",
        gzip=channel.get("CompressionType") == "Gzip",
        seed=(channel.get("ShuffleConfig") or {}).get("Seed"),
        attributes=tuple((s3.get("AttributeNames") if s3 else None) or ()),
        config=config,
    )


# -- SDK v2: everything is in hyperparameters ------------------------------------------------------


def _program_v2(hyperparameters: Mapping[str, str]) -> JobProgram | None:
    if "sagemaker_program" not in hyperparameters:
        return None
    source = source_of(hyperparameters)
    values = of_script(hyperparameters)
    # SDK v2 sets it for every TensorFlow job
    if str(values.get("model_dir", "")).startswith("s3://"):
        # No TensorFlow since 2.18 can write there; the folder's contents are uploaded.
        values["model_dir"] = "/opt/ml/model"
    return JobProgram(
        entry=_entry(decode(hyperparameters["sagemaker_program"])),
        source=source,
        arguments=tuple(arguments_v2(values)),
    )


def _distribution_v2(hyperparameters: Mapping[str, str], gpus: int) -> Distribution:
    found = {
        name.removeprefix("sagemaker_"): decode(text) for name, text in hyperparameters.items()
    }
    per_host = max(gpus, 1)
    if found.get("mpi_enabled"):
        asked = found.get("mpi_num_of_processes_per_host") or per_host
        return Distribution(
            "mpi", _count(asked), _exported_variables(found.get("mpi_custom_mpi_options"))
        )
    if found.get("distributed_dataparallel_enabled"):
        options = found.get("distributed_dataparallel_custom_mpi_options")
        return Distribution("smdataparallel", per_host, _exported_variables(options))
    if found.get("parameter_server_enabled"):
        return Distribution("parameter_server")
    if found.get("multi_worker_mirrored_strategy_enabled"):
        return Distribution("multi_worker_mirrored_strategy")
    return Distribution()


def _count(asked: object) -> int:
    if isinstance(asked, str) and asked.isdecimal():
        asked = int(asked)
    if not isinstance(asked, int) or isinstance(asked, bool) or not 1 <= asked <= 1024:
        raise ConfigurationError(
            f"Processes per host are a number from 1 to 1024. Received: {asked!r}."
        )
    return asked


def _exported_variables(options: object) -> dict[str, str]:
    """Returns the variables that ``-x NAME=VALUE`` in Open MPI's options sets."""
    try:
        words = shlex.split(str(options or ""))
    except ValueError as error:
        raise ConfigurationError(f"The MPI options {options!r} can't be read: {error}.") from error
    # the other options are ignored: they tune an engine that syrtos does not use
    pairs = [value for flag, value in itertools.pairwise(words) if flag == "-x" and "=" in value]
    return dict(pair.split("=", 1) for pair in pairs)


# -- SDK v3: two JSON files in a channel -----------------------------------------------------------


def _program_v3(request: TrainingRequest, drivers: Drivers) -> JobProgram | None:
    code = drivers.get("sourcecode") or {}
    entry, requirements = code.get("entry_script"), code.get("requirements")
    if code.get("command") or not str(entry or "").endswith(".py"):
        # a command, or a shell script: the SDK's own driver runs it
        return None
    values = of_script(request.get("HyperParameters") or {})
    arguments = tuple(
        word for name, value in values.items() for word in ("--" + name, _as_json(value))
    )
    return JobProgram(
        entry=_entry(entry),
        source="",
        arguments=arguments,
        requirements=_entry(requirements) if requirements else "",
        driven=(drivers.get("distributed") or {}).get("engine") == "syrtos",
    )


def _as_json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _distribution_v3(drivers: Drivers, gpus: int) -> Distribution:
    described = drivers.get("distributed") or {}
    # the name in `syrtos.sagemaker.Syrtos`, and the one in the SDK's own classes
    asked = described.get("workers_per_host") or described.get("process_count_per_node")
    per_host = _count(asked or max(gpus, 1))
    if "mpi_additional_options" in described:
        options = [str(word) for word in described["mpi_additional_options"] or ()]
        return Distribution("mpi", per_host, _exported_variables(shlex.join(options)))
    return Distribution("none", per_host if described else 1)


def _entry(name: object) -> str:
    path = PurePosixPath(str(name))
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ConfigurationError(f"The script {name!r} must be a path inside its source folder.")
    return str(path)
