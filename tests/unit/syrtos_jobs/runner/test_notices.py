"""Lines for the log of a job about what is done otherwise than on SageMaker."""

from __future__ import annotations

from typing import Any

import pytest

from syrtos_jobs.requests.request import read
from syrtos_jobs.runner import notices


@pytest.mark.parametrize(("mode", "processes"), [("Pipe", 2), ("Pipe", 1), ("File", 2)])
def test_processes_that_would_tear_one_stream_apart_are_told(mode: str, processes: int) -> None:
    source = {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/train"}
    settings = {
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": "s3://bucket/code.tar.gz",
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": str(processes),
    }
    request: dict[str, Any] = {
        "TrainingJobName": "job",
        "AlgorithmSpecification": {"TrainingInputMode": mode},
        "InputDataConfig": [{"ChannelName": "train", "DataSource": {"S3DataSource": source}}],
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {"InstanceType": "ml.x", "InstanceCount": 1, "VolumeSizeInGB": 1},
        "HyperParameters": settings,
    }
    said = "\n".join(notices.of(read(request, {})))
    assert ("one stream of each Pipe channel (train)" in said) == (mode == "Pipe" and processes > 1)
