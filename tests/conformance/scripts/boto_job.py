"""One training job, created with boto3 from a whole request; sources go up as they are asked for."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import boto3
from client import ASKED, answer

s3, sagemaker, logs = (boto3.client(name) for name in ("s3", "sagemaker", "logs"))
if "ours" not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]:
    s3.create_bucket(Bucket="ours", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
for path in filter(Path.is_file, Path(ASKED["source"]).iterdir()):
    s3.upload_file(str(path), "ours", f"code/{path.name}")
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w:gz") as tar:
    tar.add(ASKED["source"], ".")
s3.put_object(Bucket="ours", Key="sourcedir.tar.gz", Body=packed.getvalue())
s3.upload_file(str(Path(ASKED["data"]) / "digits.npz"), "ours", "digits/digits.npz")

request: dict[str, Any] = ASKED["request"]
name = request["TrainingJobName"]
sagemaker.create_training_job(
    RoleArn="arn:aws:iam::000000000000:role/anybody",
    OutputDataConfig={"S3OutputPath": "s3://ours/output"},
    StoppingCondition={"MaxRuntimeInSeconds": 300},
    **request,
)
sagemaker.get_waiter("training_job_completed_or_stopped").wait(
    TrainingJobName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 220}
)
files = []
there = [
    found["Key"]
    for found in s3.list_objects_v2(Bucket="ours", Prefix=f"output/{name}/output/")["Contents"]
]
for kind in ("model", "output"):
    files.append(str(Path(ASKED["folder"]) / f"{kind}.tar.gz"))
    if (key := f"output/{name}/output/{kind}.tar.gz") in there:
        s3.download_file("ours", key, files[-1])
shown = logs.filter_log_events(
    logGroupName="/aws/sagemaker/TrainingJobs", logStreamNamePrefix=name + "/"
)
answer(
    description=sagemaker.describe_training_job(TrainingJobName=name),
    model=files[0],
    output=files[1],
    lines=[event["message"] for event in shown["events"]],
)
