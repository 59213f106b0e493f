"""SDK v3 as its users call it: a ModelTrainer, `train`, and the model."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import boto3
from client import ASKED, answer
from sagemaker.core.analytics import TrainingJobAnalytics
from sagemaker.core.utils.exceptions import FailedStatusError
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode
from sagemaker.train.distributed import MPI

logging.basicConfig(
    level=logging.INFO, format="%(message)s"
)  # the SDK shows a job's output through `logging`
mpi, syrtos = ASKED.get("mpi"), ASKED.get("syrtos")
if syrtos:
    sys.path.append(
        str(Path(__file__).parents[3] / "src")
    )  # after the SDK's packages: it brings none of ours
    from syrtos.sagemaker import Syrtos
trainer = ModelTrainer(
    training_image="syrtos",
    source_code=SourceCode(source_dir=ASKED["source"], **ASKED["code"]),
    compute=Compute(instance_type="ml.m5.large", instance_count=2),
    hyperparameters=ASKED.get("hyperparameters", {}),
    environment=ASKED.get("environment", {}),
    base_job_name=ASKED["name"],
    distributed=MPI(**mpi) if mpi else Syrtos(**syrtos) if syrtos else None,  # pyright: ignore[reportPossiblyUnboundVariable]
)
inputs = [InputData(channel_name="train", data_source=ASKED["data"])]
error = ""
try:
    trainer.train(input_data_config=inputs, wait=True, logs=True)
except FailedStatusError as raised:
    error = str(raised)

job: Any = trainer._latest_training_job
job.refresh()
archive = str(Path(ASKED["folder"]) / "model.tar.gz")
if not error:
    bucket, _, key = job.model_artifacts.s3_model_artifacts.removeprefix("s3://").partition("/")
    boto3.client("s3").download_file(bucket, key, archive)
measured = None
if "measured" in ASKED:
    analytics = TrainingJobAnalytics(
        job.training_job_name, metric_names=ASKED["measured"], period=1
    )
    measured = analytics.dataframe().to_dict("list")
described = boto3.client("sagemaker").describe_training_job(TrainingJobName=job.training_job_name)
for name in ASKED.get("wanted", ()):  # channels as the SDK has uploaded them
    (uri,) = (
        each["DataSource"]["S3DataSource"]["S3Uri"]
        for each in described["InputDataConfig"]
        if each["ChannelName"] == name
    )
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    for found in boto3.client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]:
        path = Path(ASKED["folder"]) / name / found["Key"].removeprefix(prefix).lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        boto3.client("s3").download_file(bucket, found["Key"], str(path))
answer(error=error, archive=archive, description=described, measured=measured)
