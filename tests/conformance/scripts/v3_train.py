"""SDK v3 as its users call it: a ModelTrainer, `train`, and the model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import boto3
from client import ASKED, answer
from sagemaker.core.analytics import TrainingJobAnalytics
from sagemaker.core.utils.exceptions import FailedStatusError
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode
from sagemaker.train.distributed import MPI

logging.basicConfig(level=logging.INFO, format="%(message)s")  # the SDK shows a job's output through `logging`
mpi = ASKED.get("mpi")
trainer = ModelTrainer(
    training_image="syrtos",
    source_code=SourceCode(source_dir=ASKED["source"], **ASKED["code"]),
    compute=Compute(instance_type="ml.m5.large", instance_count=2),
    hyperparameters=ASKED.get("hyperparameters", {}),
    environment=ASKED.get("environment", {}),
    base_job_name=ASKED["name"],
    distributed=MPI(**mpi) if mpi else None,
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
    analytics = TrainingJobAnalytics(job.training_job_name, metric_names=ASKED["measured"], period=1)
    measured = analytics.dataframe().to_dict("list")
described = boto3.client("sagemaker").describe_training_job(TrainingJobName=job.training_job_name)
answer(error=error, archive=archive, description=described, measured=measured)
