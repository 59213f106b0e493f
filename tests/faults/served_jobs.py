"""A service as a process, and short jobs for it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from syrtos_jobs.runner import attempt, processes
from syrtos_jobs.store.home import Home

ROLE = "arn:aws:iam::000000000000:role/syrtos"


def serve(
    home: Path, capacity: int = 1, *words: str, **variables: str
) -> tuple[subprocess.Popen[bytes], str]:
    """A service that answers, with further options and variables, and its address."""
    command = [
        sys.executable,
        "-m",
        "syrtos",
        "serve",
        "--port",
        "0",
        "--capacity",
        str(capacity),
        *words,
    ]
    env = {**os.environ, **variables, "SYRTOS_HOME": str(home)}
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.readline().decode()
    found = re.search(r"at (http://\S+),", said)
    assert found, said
    return process, found[1]


def kill(process: subprocess.Popen[bytes]) -> None:
    """As a power cut would."""
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stderr is not None
    process.stderr.close()


@contextlib.contextmanager
def served(
    home: Path, capacity: int = 1, *words: str, **variables: str
) -> Iterator[Callable[[str], Any]]:
    """Clients of a service that ends with the block; no job outlives it."""
    process, url = serve(home, capacity, *words, **variables)
    try:
        yield lambda name: client(home, url, name)
    finally:
        kill(process)
        end_all(home)


def end_all(home: Path) -> None:
    """Kills runners and what they have started."""
    for folder in (home / "jobs").glob("*"):
        subprocess.run(
            ["pkill", "-9", "-f", f"syrtos_jobs.runner.attempt {folder.name}$"], check=False
        )
        processes.end(attempt.mark(Home(home), folder.name))


def client(home: Path, url: str, service: str) -> Any:
    """A client of boto3's that asks once."""
    access_key, secret_key = Home(home).keys()
    settings = Config(retries={"total_max_attempts": 1}, read_timeout=20)
    keys = {
        "aws_access_key_id": access_key,
        "aws_secret_access_key": secret_key,
        "region_name": "us-west-2",
    }
    return boto3.client(service, endpoint_url=url, config=settings, **keys)


def request(name: str, command: str, **more: Any) -> dict[str, Any]:
    """A job that runs a command of the shell on one instance."""
    algorithm = {"TrainingImage": "none", "TrainingInputMode": "File"}
    return {
        "TrainingJobName": name,
        "RoleArn": ROLE,
        "AlgorithmSpecification": {**algorithm, "ContainerEntrypoint": ["/bin/sh", "-c", command]},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
        **more,
    }


def wait_until(happens: Callable[[], bool], seconds: float = 60) -> None:
    """Waits until something has happened."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def final(sagemaker: Any, name: str, seconds: float = 60) -> dict[str, Any]:
    """What Describe says once the job has ended."""
    return until(sagemaker, name, ("Completed", "Failed", "Stopped"), seconds)


def until(
    sagemaker: Any, name: str, wanted: tuple[str, ...], seconds: float = 60
) -> dict[str, Any]:
    """What Describe says once the job has one of these statuses, first or second."""
    deadline = time.monotonic() + seconds
    while True:
        found = sagemaker.describe_training_job(TrainingJobName=name)
        if found["TrainingJobStatus"] in wanted or found["SecondaryStatus"] in wanted:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def statuses(found: dict[str, Any]) -> list[str]:
    """The secondary statuses that a job has had."""
    return [transition["Status"] for transition in found["SecondaryStatusTransitions"]]
