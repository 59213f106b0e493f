"""SDK v2 as its users call it: an estimator, `fit`, and the model."""

from __future__ import annotations

import threading
import time
from typing import Any

import sagemaker
from client import ASKED, answer
from sagemaker.exceptions import UnexpectedStatusException
from sagemaker.s3 import S3Downloader
from sagemaker.tensorflow import TensorFlow

session = sagemaker.Session()
estimator = TensorFlow(
    entry_point=ASKED["script"],
    source_dir=ASKED["source"],
    role=None,  # from the SDK's settings, which `syrtos aws-env` names
    instance_type="ml.m5.large",
    framework_version="2.19",
    py_version="py312",
    sagemaker_session=session,
    max_run=300,
    **ASKED.get("arguments", {}),
)


def stop_when_ready() -> None:
    """Waits until every instance has said that it is ready."""
    logs: Any = session.boto_session.client("logs")
    name = estimator.latest_training_job.name
    group = "/aws/sagemaker/TrainingJobs"
    for _ in range(200):
        found = logs.filter_log_events(
            logGroupName=group, logStreamNamePrefix=name + "/", filterPattern="is ready"
        )
        if len(found["events"]) == estimator.instance_count:
            break
        time.sleep(0.2)
    session.stop_training_job(name)


inputs = (
    {"train": session.upload_data(ASKED["data"], key_prefix="digits")} if "data" in ASKED else None
)
error = ""
try:
    if ASKED.get("stop"):
        estimator.fit(inputs, wait=False)
        threading.Thread(target=stop_when_ready).start()
        # not the SDK's own wait, which takes Stopping for an error if it happens to look then
        waiter: Any = session.boto_session.client("sagemaker").get_waiter(
            "training_job_completed_or_stopped"
        )
        waiter.wait(
            TrainingJobName=estimator.latest_training_job.name,
            WaiterConfig={"Delay": 1, "MaxAttempts": 280},
        )
    else:
        estimator.fit(inputs, wait=True, logs="All" if ASKED.get("logs") else "None")
except UnexpectedStatusException as raised:
    error = str(raised)

name = estimator.latest_training_job.name
description = session.describe_training_job(name)
fetched = (
    S3Downloader.download(description["ModelArtifacts"]["S3ModelArtifacts"], ASKED["folder"])
    if not error
    else []
)
logs = session.boto_session.client("logs")
shown = logs.filter_log_events(
    logGroupName="/aws/sagemaker/TrainingJobs", logStreamNamePrefix=name + "/"
)
measured = (
    estimator.training_job_analytics.dataframe()
    if "metric_definitions" in ASKED.get("arguments", {})
    else None
)
answer(
    measured=None if measured is None else measured.to_dict("list"),
    description=description,
    error=error,
    fetched=fetched,
    model_data=estimator.model_data,
    lines=[
        (event["logStreamName"].split("/")[1][:6], event["message"]) for event in shown["events"]
    ],
)
