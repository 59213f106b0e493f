"""The tuning API as boto3 shows it, with a job's definition that SDKs don't send: a script at an S3 of one's own, Hyperband, pages, tags."""

from __future__ import annotations

import io
import tarfile
import time
from typing import Any

import boto3
from client import ASKED, answer

s3, sagemaker = boto3.client("s3"), boto3.client("sagemaker")
s3.create_bucket(Bucket="tuned", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w:gz") as tar:
    tar.add(f"{ASKED['source']}/tuned.py", "tuned.py")
s3.put_object(Bucket="tuned", Key="sourcedir.tar.gz", Body=packed.getvalue())

definition: dict[str, Any] = {
    "StaticHyperParameters": {
        "sagemaker_program": "tuned.py",
        "sagemaker_submit_directory": "s3://tuned/sourcedir.tar.gz",
    },
    "AlgorithmSpecification": {"TrainingImage": "any", "TrainingInputMode": "File"},
    "RoleArn": "arn:aws:iam::000000000000:role/anybody",
    "OutputDataConfig": {"S3OutputPath": "s3://tuned/output"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
    "StoppingCondition": {"MaxRuntimeInSeconds": 300},
}
sagemaker.create_hyper_parameter_tuning_job(
    HyperParameterTuningJobName="grid",
    HyperParameterTuningJobConfig={
        "Strategy": "Grid",
        "HyperParameterTuningJobObjective": {"Type": "Maximize", "MetricName": "val_accuracy"},
        "ResourceLimits": {"MaxParallelTrainingJobs": 2},
        "ParameterRanges": {
            "CategoricalParameterRanges": [{"Name": "rate", "Values": ["0.1", "0.2", "0.3"]}]
        },
    },
    TrainingJobDefinition=definition,
    Tags=[{"Key": "team", "Value": "digits"}],
)
while (found := sagemaker.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName="grid"))[
    "HyperParameterTuningJobStatus"
] == "InProgress":
    time.sleep(0.5)
pages = sagemaker.get_paginator("list_training_jobs_for_hyper_parameter_tuning_job").paginate(
    HyperParameterTuningJobName="grid",
    SortBy="FinalObjectiveMetricValue",
    SortOrder="Descending",
    PaginationConfig={"PageSize": 2},
)
trials = [trial for page in pages for trial in page["TrainingJobSummaries"]]
job = sagemaker.describe_training_job(TrainingJobName=trials[0]["TrainingJobName"])
answer(
    description=found,
    trials=trials,
    job=job,
    tags=sagemaker.list_tags(ResourceArn=found["HyperParameterTuningJobArn"])["Tags"],
    of_job=sagemaker.list_tags(ResourceArn=job["TrainingJobArn"])["Tags"],
    listed=[
        one["HyperParameterTuningJobName"]
        for one in sagemaker.list_hyper_parameter_tuning_jobs()["HyperParameterTuningJobSummaries"]
    ],
)
