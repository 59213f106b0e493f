"""The training API as boto3 shows it: pages, tags, waiters, errors, logs."""

from __future__ import annotations

import time
from typing import Any

import boto3
import botocore.exceptions
from client import ASKED, answer

sagemaker, logs = boto3.client("sagemaker"), boto3.client("logs")
GROUP = "/aws/sagemaker/TrainingJobs"


def request(name: str, *command: str, **facts: Any) -> dict[str, Any]:
    """A job of one instance that runs a command."""
    algorithm = {
        "TrainingImage": "any",
        "TrainingInputMode": "File",
        "ContainerEntrypoint": list(command),
    }
    return {
        "TrainingJobName": name,
        "RoleArn": "arn:aws:iam::000000000000:role/anybody",
        "AlgorithmSpecification": algorithm,
        "OutputDataConfig": {"S3OutputPath": "s3://jobs/output"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        **facts,
    }


def error(call: Any, **facts: Any) -> list[str]:
    """Code, HTTP status and text of the error that a call ends with."""
    try:
        call(**facts)
    except botocore.exceptions.ClientError as raised:
        status = raised.response["ResponseMetadata"]["HTTPStatusCode"]
        return [raised.response["Error"]["Code"], str(status), raised.response["Error"]["Message"]]
    return []


def waited(name: str) -> str:
    """The status in which a job ends."""
    waiter = sagemaker.get_waiter("training_job_completed_or_stopped")
    waiter.wait(TrainingJobName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    return sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobStatus"]


counting = [
    "sh",
    "-c",
    "i=0; while [ $i -lt 25 ]; do echo line $i; i=$((i+1)); done; echo; echo loss=0.25 >&2",
]
numbers = {
    "MetricDefinitions": [
        {"Name": "number", "Regex": "line ([0-9]+)"},
        {"Name": "none", "Regex": "x=(.*)"},
    ]
}
tags = [{"Key": "team", "Value": "digits"}, {"Key": "aim", "Value": "0.99"}]
begun = time.time()
counts = request("counts-1", *counting, Tags=tags)
counts["AlgorithmSpecification"] |= numbers
created = sagemaker.create_training_job(**counts)
arn = created["TrainingJobArn"]
for number in (2, 3, 4):
    sagemaker.create_training_job(**request(f"counts-{number}", "true"))
sagemaker.create_training_job(**request("sleeps", "sleep", "300"))

found: dict[str, Any] = {"arn": arn}
found["in use"] = error(sagemaker.create_training_job, **request("counts-1", "true"))
too_big = {"InstanceType": "ml.m5.large", "InstanceCount": 3, "VolumeSizeInGB": 1}
found["too big"] = error(
    sagemaker.create_training_job, **request("big", "true", ResourceConfig=too_big)
)
found["bad name"] = error(sagemaker.create_training_job, **request("no_underscores", "true"))
unknown = {"S3OutputPath": "https://example.com/"}
found["bad uri"] = error(
    sagemaker.create_training_job, **request("uri", "true", OutputDataConfig=unknown)
)
found["missing"] = error(sagemaker.describe_training_job, TrainingJobName="nobody")
found["stop missing"] = error(sagemaker.stop_training_job, TrainingJobName="nobody")
found["not here"] = error(sagemaker.list_models)
found["no group"] = error(logs.describe_log_streams, logGroupName="/aws/lambda/f")
found["no stream"] = error(
    logs.get_log_events, logGroupName=GROUP, logStreamName="counts-1/algo-9-1"
)

found["statuses"] = {
    name: waited(name) for name in ("counts-1", "counts-2", "counts-3", "counts-4")
}
deadline = time.monotonic() + 30
while sagemaker.describe_training_job(TrainingJobName="sleeps")["SecondaryStatus"] != "Training":
    assert time.monotonic() < deadline
    time.sleep(0.2)
found["running"] = [
    job["TrainingJobName"]
    for job in sagemaker.list_training_jobs(StatusEquals="InProgress")["TrainingJobSummaries"]
]
sagemaker.stop_training_job(TrainingJobName="sleeps")
found["statuses"]["sleeps"] = waited("sleeps")
found["stop ended"] = error(sagemaker.stop_training_job, TrainingJobName="sleeps")

paginator = sagemaker.get_paginator("list_training_jobs")
pages = paginator.paginate(
    NameContains="counts", SortBy="Name", SortOrder="Ascending", PaginationConfig={"PageSize": 3}
)
found["pages"] = [
    [job["TrainingJobName"] for job in page["TrainingJobSummaries"]] for page in pages
]
newest = sagemaker.list_training_jobs(MaxResults=2, SortOrder="Descending")["TrainingJobSummaries"]
found["newest"] = [job["TrainingJobName"] for job in newest]
later = sagemaker.list_training_jobs(CreationTimeAfter=begun + 3600)
found["later"] = later["TrainingJobSummaries"]

found["tags"] = sagemaker.list_tags(ResourceArn=arn)["Tags"]
sagemaker.add_tags(
    ResourceArn=arn, Tags=[{"Key": "team", "Value": "letters"}, {"Key": "new", "Value": ""}]
)
sagemaker.delete_tags(ResourceArn=arn, TagKeys=["aim"])
found["new tags"] = sagemaker.list_tags(ResourceArn=arn)["Tags"]

(stream,) = logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix="counts-1/")[
    "logStreams"
]
name = stream["logStreamName"]
found["stream"] = stream
token, forward = None, []
while True:
    facts = {"nextToken": token} if token else {"startFromHead": True}
    page = logs.get_log_events(logGroupName=GROUP, logStreamName=name, limit=10, **facts)
    forward.append([event["message"] for event in page["events"]])
    if page["nextForwardToken"] == token:
        break
    token = page["nextForwardToken"]
found["forward"] = forward
last = logs.get_log_events(logGroupName=GROUP, logStreamName=name, limit=3)
found["last"] = [event["message"] for event in last["events"]]
before = logs.get_log_events(
    logGroupName=GROUP, logStreamName=name, limit=3, nextToken=last["nextBackwardToken"]
)
found["before last"] = [event["message"] for event in before["events"]]
pages = logs.get_paginator("filter_log_events").paginate(
    logGroupName=GROUP,
    logStreamNamePrefix="counts-",
    filterPattern='"line 2"',
    PaginationConfig={"PageSize": 2},
)
found["filtered"] = [event["message"] for page in pages for event in page["events"]]

cloudwatch = boto3.client("cloudwatch")
of_job = [{"Name": "TrainingJobName", "Value": "counts-1"}]
listed = cloudwatch.list_metrics(Namespace=GROUP, Dimensions=of_job)["Metrics"]
found["metrics"] = [metric["MetricName"] for metric in listed]
lately = {"StartTime": begun - 60, "EndTime": time.time() + 60}
stat = {"Metric": listed[0], "Period": 86400, "Stat": "Sum"}
summed = cloudwatch.get_metric_data(MetricDataQueries=[{"Id": "sum", "MetricStat": stat}], **lately)
found["sum"] = summed["MetricDataResults"][0]["Values"]
(point,) = cloudwatch.get_metric_statistics(
    **listed[0], **lately, Period=86400, Statistics=["Average", "SampleCount"]
)["Datapoints"]
found["average"] = [point["Average"], point["SampleCount"]]
math = [{"Id": "half", "Expression": "sum / 2"}]
found["math"] = error(cloudwatch.get_metric_data, MetricDataQueries=math, **lately)

sagemaker.delete_training_job(TrainingJobName="counts-4")
found["deleted"] = error(sagemaker.describe_training_job, TrainingJobName="counts-4")
found["description"] = sagemaker.describe_training_job(TrainingJobName="counts-1")
found["me"] = boto3.client("sts").get_caller_identity()["Account"]
wrong = boto3.Session(aws_access_key_id="SYRTNOBODY", aws_secret_access_key="x" * 40)
found["stranger"] = [
    error(call)[0]
    for call in (
        wrong.client("sagemaker").list_training_jobs,
        wrong.client("s3").list_buckets,
        wrong.client("sts").get_caller_identity,
    )
]
forger = boto3.Session(aws_secret_access_key="x" * 40, aws_access_key_id=ASKED["access_key"])
found["forger"] = [
    error(call)[0]
    for call in (
        forger.client("sagemaker").list_training_jobs,
        forger.client("s3").list_buckets,
        forger.client("sts").get_caller_identity,
    )
]
answer(**found)
