"""The service of training jobs under load: Describe per second and its latency, 500 jobs created, time to a script's first line."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

RATE = 1000
SECONDS = 5.0
CONNECTIONS = 32


def main() -> list[dict[str, Any]]:
    """One line of results for each measurement."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["SYRTOS_HOME"] = home
        server = subprocess.Popen(
            [sys.executable, "-m", "syrtos", "serve", "--port", "0", "--capacity", "1"],
            stderr=subprocess.PIPE,
        )
        assert server.stderr is not None
        server.stderr.readline()
        try:
            return [_first_line(Path(home)), _create(500), *_describe()]
        finally:
            server.terminate()
            server.wait()
            for job in Path(home, "jobs").iterdir():
                subprocess.run(
                    ["pkill", "-9", "-f", f"syrtos_jobs.runner.attempt {job.name}"], check=False
                )


def _client() -> Any:
    import boto3

    from syrtos_jobs.commands.aws_env import variables
    from syrtos_jobs.store.home import Home

    os.environ.update(variables(Home()))
    return boto3.client("sagemaker")


def _request(name: str, command: str) -> dict[str, Any]:
    return {
        "TrainingJobName": name,
        "RoleArn": "arn:aws:iam::000000000000:role/syrtos",
        "AlgorithmSpecification": {
            "TrainingInputMode": "File",
            "TrainingImage": "x",
            "ContainerEntrypoint": ["/bin/sh", "-c", command],
        },
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    }


def _first_line(home: Path) -> dict[str, Any]:
    """From CreateTrainingJob to the first line that the script prints, as the log has it."""
    client, seconds = _client(), []
    for number in range(5):
        name = f"first-{number}"
        began = time.time()
        client.create_training_job(**_request(name, "echo hello"))
        while not (
            lines := [
                line
                for path in (home / "jobs" / name / "logs").glob("*")
                for line in path.read_text().splitlines()
            ]
        ):
            time.sleep(0.01)
        seconds.append(json.loads(lines[0])["t"] / 1000 - began)
        while (
            client.describe_training_job(TrainingJobName=name)["TrainingJobStatus"] == "InProgress"
        ):
            time.sleep(0.05)
    return _line("create to first line", sorted(seconds)[2])


def _create(count: int) -> dict[str, Any]:
    client = _client()
    began = time.perf_counter()
    for number in range(count):
        client.create_training_job(**_request(f"queued-{number:04}", "sleep 600"))
    seconds = time.perf_counter() - began
    listed = sum(
        len(page["TrainingJobSummaries"])
        for page in client.get_paginator("list_training_jobs").paginate(
            NameContains="queued-", MaxResults=100
        )
    )
    assert listed == count
    return _line("create, one of 500 queued", seconds / count)


def _line(work: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {"work": f"jobs {work}", "peer": "syrtos", "median_ms": round(seconds * 1e3, 2), **more}


def _describe() -> list[dict[str, Any]]:
    from syrtos_jobs.store.home import Home

    url = Home().endpoint()
    assert url is not None
    body = json.dumps({"TrainingJobName": "queued-0250"}).encode()
    headers = {
        "X-Amz-Target": "SageMaker.DescribeTrainingJob",
        "Content-Type": "application/x-amz-json-1.1",
    }
    request = AWSRequest("POST", url + "/", data=body, headers=headers)
    SigV4Auth(Credentials(*Home().keys()), "sagemaker", "us-west-2").add_auth(request)
    host, port = url.removeprefix("http://").split(":")
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    raw = (
        f"POST / HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode()
        + body
    )
    began = time.perf_counter()
    latencies = asyncio.run(_load(host, int(port), raw))
    seconds = time.perf_counter() - began
    latencies.sort()
    count = len(latencies)
    rate = round(count / seconds)
    return [
        _line(f"describe p{part}", latencies[count * part // 100], rate=rate) for part in (50, 99)
    ]


async def _load(host: str, port: int, raw: bytes) -> list[float]:
    """An open loop: requests are due at a rate, whether or not earlier ones have been answered; latency counts from when they were due."""
    due: asyncio.Queue[float | None] = asyncio.Queue()
    latencies: list[float] = []

    async def worker() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        while (moment := await due.get()) is not None:
            writer.write(raw)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head.split(b"\r\n")[0], head
            length = next(
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            )
            await reader.readexactly(length)
            latencies.append(time.perf_counter() - moment)
        writer.close()

    workers = [asyncio.create_task(worker()) for _ in range(CONNECTIONS)]
    began = time.perf_counter()
    for number in range(int(RATE * SECONDS)):
        moment = began + number / RATE
        await asyncio.sleep(max(moment - time.perf_counter(), 0))
        due.put_nowait(moment)
    for _ in workers:
        due.put_nowait(None)
    await asyncio.gather(*workers)
    return latencies


if __name__ == "__main__":
    for line in main():
        print(json.dumps(line))
