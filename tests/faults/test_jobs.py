"""Jobs when things go wrong: servers and runners killed, workers wanted by others, time that is up, scripts that are told to end."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import served_jobs as jobs
from botocore.exceptions import BotoCoreError, ClientError
from served_jobs import final, request, served, statuses, until

pytestmark = pytest.mark.slow

_LIFE = ["Starting", "Downloading", "Training", "Uploading", "Completed"]


def test_jobs_wait_for_each_other(tmp_path: Path) -> None:
    with served(tmp_path, capacity=1) as client:
        sagemaker = client("sagemaker")
        for name in ("a", "b", "c"):
            sagemaker.create_training_job(**request(name, "sleep 0.5"))
        found = [final(sagemaker, name) for name in ("a", "b", "c")]
    assert statuses(found[0]) == _LIFE
    assert statuses(found[2]) == ["Starting", "Pending", *_LIFE]
    spans = [(job["TrainingStartTime"], job["TrainingEndTime"]) for job in found]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_a_job_that_runs_is_adopted_by_the_next_server(tmp_path: Path) -> None:
    process, url = jobs.serve(tmp_path)
    jobs.client(tmp_path, url, "sagemaker").create_training_job(
        **request("long", "echo begin; sleep 4; echo end")
    )
    until(jobs.client(tmp_path, url, "sagemaker"), "long", ("Training",))
    jobs.kill(process)
    with served(tmp_path) as client:
        found = final(client("sagemaker"), "long")
        events = _lines(client("logs"), "long")
    assert statuses(found) == _LIFE
    assert events == ["begin", "end"]


def test_a_job_whose_runner_dies_is_begun_again(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        sagemaker = client("sagemaker")
        sagemaker.create_training_job(**request("again", "echo begun; sleep 2"))
        until_said(client, "again", "begun")
        subprocess.run(["pkill", "-9", "-f", "syrtos_jobs.runner.attempt again"], check=True)
        found = final(sagemaker, "again")
    assert statuses(found) == [*_LIFE[:3], "Restarting", *_LIFE]


def test_a_spot_job_gives_way_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    counts = "n=$(cat /opt/ml/checkpoints/n 2>/dev/null || echo 0); echo from $n; " + (
        "while [ $n -lt 80 ]; do n=$((n+1)); echo $n > /opt/ml/checkpoints/n.new; mv /opt/ml/checkpoints/n.new /opt/ml/checkpoints/n; "
        "[ $n = 6 ] && echo at 6; sleep 0.1; done; echo to $n"
    )
    spot = request(
        "spot", counts, EnableManagedSpotTraining=True, CheckpointConfig={"S3Uri": "s3://bucket/checkpoints"},
        StoppingCondition={"MaxRuntimeInSeconds": 600, "MaxWaitTimeInSeconds": 600},
    )  # fmt: skip
    with served(tmp_path, capacity=1) as client:
        sagemaker = client("sagemaker")
        sagemaker.create_training_job(**spot)
        until_said(client, "spot", "at 6")
        sagemaker.create_training_job(**request("first", "sleep 0.5"))
        found, other = final(sagemaker, "spot"), final(sagemaker, "first")
        lines = [line for line in _lines(client("logs"), "spot") if line.startswith(("from", "to"))]
    assert "Interrupted" in statuses(found)
    assert statuses(found)[-1] == "Completed"
    assert other["TrainingEndTime"] < found["TrainingEndTime"]
    began = [int(line.split()[1]) for line in lines if line.startswith("from")]
    assert began[0] == 0
    assert began[1] > 5
    assert lines[-1] == "to 80"


@pytest.mark.parametrize(
    ("limits", "spot", "secondary"),
    [
        (
            {"MaxRuntimeInSeconds": 10},
            False,
            "MaxRuntimeExceeded",
        ),  # in which a busy machine starts a shell
        ({"MaxRuntimeInSeconds": 1, "MaxWaitTimeInSeconds": 2}, True, "MaxWaitTimeExceeded"),
    ],
)
def test_a_job_ends_when_its_time_is_up(
    tmp_path: Path, limits: dict[str, int], spot: bool, secondary: str
) -> None:
    """What its script has written by then is uploaded."""
    command = (
        "trap 'echo told; exit 0' TERM; echo x > /opt/ml/model/x; while true; do sleep 0.1; done"
    )
    with served(tmp_path, capacity=1) as client:
        sagemaker = client("sagemaker")
        if spot:  # it can't even begin
            sagemaker.create_training_job(**request("other", "sleep 5"))
            until(sagemaker, "other", ("Training",))
        sagemaker.create_training_job(
            **{
                **request("timed", command),
                "StoppingCondition": limits,
                "EnableManagedSpotTraining": spot,
            }
        )
        found = final(sagemaker, "timed")
        keys = (
            [o["Key"] for o in client("s3").list_objects_v2(Bucket="bucket").get("Contents", [])]
            if not spot
            else []
        )
    assert (found["TrainingJobStatus"], found["SecondaryStatus"]) == ("Stopped", secondary)
    assert spot or keys == ["out/timed/output/model.tar.gz"]


def test_a_stopped_job_hears_of_it_and_leaves_nothing(tmp_path: Path) -> None:
    command = "trap 'echo told; exit 0' TERM; (trap '' TERM; sleep 300) & echo ready; while true; do sleep 0.1; done"
    with served(tmp_path) as client:
        sagemaker = client("sagemaker")
        sagemaker.create_training_job(**request("stopped", command))
        until(sagemaker, "stopped", ("Training",))
        until_said(client, "stopped", "ready")
        sagemaker.stop_training_job(TrainingJobName="stopped")
        found = final(sagemaker, "stopped")
        assert "told" in _lines(client("logs"), "stopped")
        assert jobs.processes.of(jobs.attempt.mark(jobs.Home(tmp_path), "stopped")) == []
    assert statuses(found) == [
        "Starting",
        "Downloading",
        "Training",
        "Stopping",
        "Uploading",
        "Stopped",
    ]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(folder)]
    if done := subprocess.run(mount, capture_output=True, text=True, check=False).stderr:
        pytest.skip(f"a small file system can't be mounted here: {done}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.root
@pytest.mark.parametrize(
    "command",
    [
        pytest.param("head -c 200000000 /dev/zero | tr '\\0' x | fold", marks=pytest.mark.long),
        "head -c 200000000 /dev/zero > $SM_MODEL_DIR/model",
    ],
)
def test_a_job_that_fills_the_disk_fails_once_and_says_so(small_disk: Path, command: str) -> None:
    with served(small_disk / "home") as client:
        sagemaker = client("sagemaker")
        sagemaker.create_training_job(**request("fills", command))
        found = final(sagemaker, "fills")
        sagemaker.create_training_job(**request("after", "echo fine"))
        assert statuses(final(sagemaker, "after")) == _LIFE
    assert statuses(found) == [*_LIFE[:3], "Failed"]
    assert "is full (ENOSPC, No space left on device)" in found["FailureReason"]


@pytest.mark.root
def test_a_small_model_outlives_a_disk_that_something_else_has_filled(small_disk: Path) -> None:
    command = "echo weights > $SM_MODEL_DIR/model; echo ready; sleep 6; exit 3"
    with served(small_disk / "home") as client:
        sagemaker = client("sagemaker")
        sagemaker.create_training_job(**request("beside", command))
        until_said(client, "beside", "ready")
        with contextlib.suppress(OSError), (small_disk / "other").open("wb") as other:
            while True:
                other.write(bytes(1 << 16))
                other.flush()
        found = final(sagemaker, "beside")
        (small_disk / "other").unlink()
    place = found["FailureReason"].partition("Its model is kept in ")[2].rstrip(".")
    assert (Path(place) / "0" / "model").read_text() == "weights\n", found["FailureReason"]


def test_a_long_output_shows_its_first_line_at_once(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        client("sagemaker").create_training_job(
            **request("long", "echo first; yes xxxxxxxxxxxxxxxxxxxxxxxx | head -c 200000000")
        )
        until_said(client, "long", "first")
        assert (
            client("sagemaker").describe_training_job(TrainingJobName="long")["SecondaryStatus"]
            == "Training"
        )
        (runner,) = [
            p
            for p in psutil.process_iter(["cmdline"])
            if (p.info["cmdline"] or [])[-2:] == ["syrtos_jobs.runner.attempt", "long"]
        ]
        time.sleep(3)
        assert runner.memory_info().rss < 300 << 20


def test_a_job_that_waits_can_be_stopped(tmp_path: Path) -> None:
    with served(tmp_path, capacity=1) as client:
        sagemaker = client("sagemaker")
        sagemaker.create_training_job(**request("runs", "sleep 6"))
        sagemaker.create_training_job(**request("waits", "echo never"))
        sagemaker.stop_training_job(TrainingJobName="waits")
        found = final(sagemaker, "waits")
        assert (
            sagemaker.describe_training_job(TrainingJobName="runs")["TrainingJobStatus"]
            == "InProgress"
        )
        assert final(sagemaker, "runs")["TrainingJobStatus"] == "Completed"
    assert found["SecondaryStatus"] == "Stopped"
    assert "Training" not in statuses(found)


def test_one_failed_instance_fails_the_job_at_once(tmp_path: Path) -> None:
    command = "if [ $(hostname) = algo-2 ]; then echo broken; exit 7; fi; sleep 60"
    two = {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1}
    with served(tmp_path, capacity=2) as client:
        sagemaker = client("sagemaker")
        sagemaker.create_training_job(**{**request("half", command), "ResourceConfig": two})
        found = final(sagemaker, "half", seconds=20)
    assert found["TrainingJobStatus"] == "Failed"
    assert "ExitCode 7" in found["FailureReason"]
    assert "broken" in found["FailureReason"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("times", [4, pytest.param(50, marks=pytest.mark.long)])
def test_nothing_is_lost_when_the_server_is_killed_again_and_again(
    tmp_path: Path, times: int
) -> None:
    """Objects and jobs that a client was told of are there afterwards, and every job ends."""
    rng = random.Random(0)
    written: dict[str, set[str]] = {}
    created: list[str] = []
    for number in range(times):
        process, url = jobs.serve(tmp_path, capacity=2)
        # Answers, and not seconds: a busy machine gives few of those in a second.
        answers, delay = rng.randrange(10), rng.uniform(0.0, 0.05)
        victim = threading.Timer(delay, process.kill)
        with contextlib.suppress(BotoCoreError, ClientError):
            for count, _ in enumerate(_write(tmp_path, url, number, written, created)):
                if count == answers:
                    victim.start()
        assert victim.ident, f"life {number} got no answer"
        victim.join()
        jobs.kill(process)
    with served(tmp_path, capacity=2) as client:
        s3, sagemaker = client("s3"), client("sagemaker")
        for key, digests in written.items():
            body = s3.get_object(Bucket="bucket", Key=key)["Body"].read()
            assert hashlib.md5(body).hexdigest() in digests, key
        ended = [final(sagemaker, name, 120)["TrainingJobStatus"] for name in created]
    assert len(written) > 3
    assert len(created) > times // 2
    assert set(ended) == {"Completed"}


def _write(
    home: Path, url: str, number: int, written: dict[str, set[str]], created: list[str]
) -> Iterator[None]:
    """Fills in what was acknowledged; a key that was being written over may have either value. Comes back before the first request, and after each."""
    s3, sagemaker = jobs.client(home, url, "s3"), jobs.client(home, url, "sagemaker")
    yield
    with contextlib.suppress(ClientError):  # it is there
        s3.create_bucket(
            Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
        )
    yield
    name = f"job-{number}"
    sagemaker.create_training_job(**request(name, "true"))
    created.append(name)
    yield
    for count in range(1000):
        key = f"k{count % 40}"
        body = random.Random(number * 1000 + count).randbytes(100_000)
        digest = hashlib.md5(body).hexdigest()
        if key in written:
            written[key].add(digest)
        s3.put_object(Bucket="bucket", Key=key, Body=body)
        written[key] = {digest}
        yield


def until_said(client: Callable[[str], Any], job: str, line: str, seconds: float = 60) -> None:
    """Waits for a line of a job's log."""
    deadline = time.monotonic() + seconds
    while line not in (said := _lines(client("logs"), job)):
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


def _lines(logs: Any, job: str) -> list[str]:
    group = "/aws/sagemaker/TrainingJobs"
    found = logs.filter_log_events(logGroupName=group, logStreamNamePrefix=f"{job}/")
    return [event["message"] for event in found["events"]]
