"""The parts of CreateTrainingJob's parameters that syrtos reads; AWS calls them shapes.

Requests have these types once SageMaker's service model has been checked. Names and meanings are of
its API reference.
"""

from __future__ import annotations

from typing import Required, TypedDict


class MetricDefinition(TypedDict):
    """A metric, and the regular expression that finds it in a line of output."""

    Name: str
    Regex: str


class Tag(TypedDict):
    """A tag of a job."""

    Key: str
    Value: str


class Algorithm(TypedDict, total=False):
    """``AlgorithmSpecification``."""

    TrainingImage: str
    TrainingInputMode: Required[str]
    ContainerEntrypoint: list[str]
    ContainerArguments: list[str]
    MetricDefinitions: list[MetricDefinition]


class S3Source(TypedDict, total=False):
    """A channel's objects."""

    S3DataType: Required[str]
    S3Uri: Required[str]
    S3DataDistributionType: str
    AttributeNames: list[str]


class FileSystemSource(TypedDict):
    """A channel's folder of a file system."""

    DirectoryPath: str


class DataSource(TypedDict, total=False):
    """The place of a channel's data."""

    S3DataSource: S3Source
    FileSystemDataSource: FileSystemSource


class ShuffleConfig(TypedDict):
    """The order of a channel's objects."""

    Seed: int


class ChannelFacts(TypedDict, total=False):
    """An entry of ``InputDataConfig``."""

    ChannelName: Required[str]
    DataSource: Required[DataSource]
    InputMode: str
    RecordWrapperType: str
    CompressionType: str
    ContentType: str
    ShuffleConfig: ShuffleConfig


class InstanceGroup(TypedDict):
    """Instances of one type in a job that has several."""

    InstanceGroupName: str
    InstanceType: str
    InstanceCount: int


class Resources(TypedDict, total=False):
    """``ResourceConfig``."""

    InstanceType: str
    InstanceCount: int
    InstanceGroups: list[InstanceGroup]


class OutputConfig(TypedDict, total=False):
    """``OutputDataConfig``."""

    S3OutputPath: Required[str]
    CompressionType: str


class FolderConfig(TypedDict, total=False):
    """``CheckpointConfig``: the URI at which a folder of the script is kept, and the folder."""

    S3Uri: Required[str]
    LocalPath: str


class TensorBoardConfig(TypedDict, total=False):
    """``TensorBoardOutputConfig``."""

    S3OutputPath: Required[str]
    LocalPath: str


class StoppingCondition(TypedDict, total=False):
    """A job's limits of time, in seconds."""

    MaxRuntimeInSeconds: int
    MaxWaitTimeInSeconds: int
    MaxPendingTimeInSeconds: int


class RetryStrategy(TypedDict):
    """The number of times that dead workers are started again."""

    MaximumRetryAttempts: int


class TrainingRequest(TypedDict, total=False):
    """CreateTrainingJob's parameters.

    The parameters that every job needs are there once `request.read` has looked.
    """

    TrainingJobName: Required[str]
    AlgorithmSpecification: Required[Algorithm]
    HyperParameters: dict[str, str]
    Environment: dict[str, str]
    InputDataConfig: list[ChannelFacts]
    OutputDataConfig: Required[OutputConfig]
    ResourceConfig: Required[Resources]
    CheckpointConfig: FolderConfig
    TensorBoardOutputConfig: TensorBoardConfig
    StoppingCondition: StoppingCondition
    RetryStrategy: RetryStrategy
    EnableManagedSpotTraining: bool
    EnableNetworkIsolation: bool


class SourceCode(TypedDict, total=False):
    """``sourcecode.json`` of SDK v3's drivers."""

    entry_script: str
    command: str
    requirements: str


class DistributedFacts(TypedDict, total=False):
    """``distributed.json`` of SDK v3's drivers: the SDK's own, or `syrtos.sagemaker.Syrtos`."""

    engine: str
    workers_per_host: int
    process_count_per_node: int
    mpi_additional_options: list[str]


class Drivers(TypedDict, total=False):
    """The JSON files of the channel ``sm_drivers``, by name."""

    sourcecode: SourceCode
    distributed: DistributedFacts
