"""One service whose standard error nobody reads, and jobs that would hold it, or outlive their end."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import served_jobs as jobs

pytestmark = pytest.mark.slow

SECRET, PIN = "s3cr3t-of-the-script", "4711"
# What others see of a secret argument, the script itself looks for.
SCRIPT = f"""
import os, pathlib, sys
def shown(pid):
    try: return {SECRET[::-1]!r}[::-1] in pathlib.Path("/proc", pid, "cmdline").read_text()
    except OSError: return False
print("given", sys.argv[1:])
print("seen", sum(shown(pid) for pid in os.listdir("/proc") if pid.isdigit()))
print("arguments", len(sys.argv), "pin", os.environ.get("SM_HP_PW"), "of 14711")
"""


class Service:
    """A service of a folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process, self.url = jobs.serve(home, 4)
        # who has read it is gone
        assert self.process.stderr is not None
        self.process.stderr.close()

    def client(self, name: str) -> Any:
        return jobs.client(self.home, self.url, name)

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/health", timeout=30) as answer:
            return json.load(answer)

    def raw(self, name: str) -> str:
        paths = (self.home / "jobs" / name).glob("attempt-*/**/logs/*")
        return "".join(path.read_text() for path in paths)

    def events(self, name: str) -> str:
        paths = (self.home / "jobs" / name / "logs").glob("*.jsonl")
        return "".join(json.loads(line)["m"] + "\n" for path in paths for line in path.open())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("home"))
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()
        jobs.end_all(found.home)


def test_a_line_that_can_not_be_printed_stops_no_job(service: Service) -> None:
    obstacle = service.home / "jobs" / "blocked" / "runner.log"
    obstacle.mkdir(parents=True)
    sagemaker = service.client("sagemaker")
    sagemaker.create_training_job(**jobs.request("blocked", "true"))
    jobs.until(sagemaker, "blocked", ("Restarting",))
    obstacle.rmdir()
    assert jobs.final(sagemaker, "blocked")["TrainingJobStatus"] == "Completed"
    jobs.wait_until(lambda: service.health()["status"] == "ok")


def test_an_expression_of_exponential_time_does_not_keep_a_job(service: Service) -> None:
    sagemaker = service.client("sagemaker")
    asked = jobs.request("slow", f"while :; do echo {'a' * 60}b; echo loss=0.5; sleep 0.2; done")
    asked["StoppingCondition"] = {"MaxRuntimeInSeconds": 8}
    asked["AlgorithmSpecification"]["MetricDefinitions"] = [
        {"Name": "slow", "Regex": r"((?:a|aa)+)$"},
        {"Name": "loss", "Regex": r"loss=(\S+)"},
    ]
    sagemaker.create_training_job(**asked)
    found = jobs.final(sagemaker, "slow", 100)
    assert found["SecondaryStatus"] == "MaxRuntimeExceeded"
    assert [one["MetricName"] for one in found["FinalMetricDataList"]] == ["loss"]
    assert "the metric slow is not looked for any more" in service.events("slow")


def test_processes_without_their_environment_end_with_their_job(
    service: Service, tmp_path: Path
) -> None:
    sagemaker = service.client("sagemaker")
    (tmp_path / "sleeper.sh").write_text(
        f"cd {tmp_path}; sleep 1000 & echo $! > new; mv new sleeper; wait"
    )
    script = (
        f"setsid env -i sh {tmp_path}/sleeper.sh &"
        f" while [ ! -e {tmp_path}/sleeper ]; do sleep 0.05; done"
    )
    sagemaker.create_training_job(**jobs.request("leaving", script))
    assert jobs.final(sagemaker, "leaving")["TrainingJobStatus"] == "Completed"
    pid = int((tmp_path / "sleeper").read_text())
    jobs.wait_until(lambda: not _runs(pid), 20)


def test_processes_without_their_environment_end_with_a_runner_that_is_killed(
    service: Service, tmp_path: Path
) -> None:
    sagemaker = service.client("sagemaker")
    (tmp_path / "sleeper.sh").write_text(
        f"cd {tmp_path}; sleep 1000 & echo $! > new; mv new sleeper; wait"
    )
    asked = jobs.request("orphan", f"setsid env -i sh {tmp_path}/sleeper.sh & sleep 1000")
    sagemaker.create_training_job(**asked, RetryStrategy={"MaximumRetryAttempts": 1})
    jobs.wait_until((tmp_path / "sleeper").exists, 60)
    pid = int((tmp_path / "sleeper").read_text())
    subprocess.run(["pkill", "-9", "-f", "syrtos_jobs.runner.attempt orphan$"], check=True)
    jobs.wait_until(lambda: not _runs(pid), 20)
    sagemaker.stop_training_job(TrainingJobName="orphan")
    assert jobs.final(sagemaker, "orphan")["TrainingJobStatus"] == "Stopped"


def _runs(pid: int) -> bool:
    try:
        return "sleep" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("distribution", ["", "none"], ids=["world", "copies"])
def test_secrets_are_on_no_command_line_and_in_no_log(service: Service, distribution: str) -> None:
    store, packed, name = service.client("s3"), io.BytesIO(), f"secret-{distribution or 'world'}"
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        member = tarfile.TarInfo("train.py")
        member.size = len(SCRIPT)
        tar.addfile(member, io.BytesIO(SCRIPT.encode()))
    store.create_bucket(Bucket=name)
    store.put_object(Bucket=name, Key="code.tar.gz", Body=packed.getvalue())
    asked = jobs.request(name, "")
    del asked["AlgorithmSpecification"]["ContainerEntrypoint"]
    asked["HyperParameters"] = {
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": json.dumps(f"s3://{name}/code.tar.gz"),
        "api_key": json.dumps(SECRET),
        "pw": PIN,
    }
    asked["Environment"] = {"SYRTOS_DISTRIBUTION": distribution} if distribution else {}
    sagemaker = service.client("sagemaker")
    sagemaker.create_training_job(**asked)
    found = jobs.final(sagemaker, name)
    assert found["TrainingJobStatus"] == "Completed", found
    seen = service.events(name)
    assert "seen 0\n" in seen
    assert "arguments 5 pin ****** of 14711\n" in seen
    assert "given ['--api_key', '******', '--pw', '******']\n" in seen
    of_runner = (service.home / "jobs" / name / "runner.log").read_text()
    for text in (seen, service.raw(name), of_runner, json.dumps(found, default=str)):
        assert SECRET not in text
        assert f"'{PIN}'" not in text
    assert "arguments 5" in service.raw(name)
    for path in service.home.glob("jobs/*/attempt-*/run.json"):
        assert path.stat().st_mode & 0o077 == 0
        assert SECRET not in path.read_text()


def test_links_and_paths_that_lead_out(service: Service, tmp_path: Path) -> None:
    """What a script puts in the place of a folder, or of the file of its failure, is not uploaded."""
    (tmp_path / "private").write_text("of somebody else")
    sagemaker, store = service.client("sagemaker"), service.client("s3")
    store.create_bucket(Bucket="led-out")
    (tmp_path / "link.sh").write_text(
        "cd /opt/ml; rm -rf model output/tensorboard;"
        f" ln -s {tmp_path} model; ln -s {tmp_path} output/tensorboard;"
        f" ln -s {tmp_path}/private checkpoints/x; ln -s {tmp_path}/private output/failure;"
        " sleep 2; exit 3"
    )
    asked = jobs.request("linking", f"sh {tmp_path}/link.sh")
    asked["OutputDataConfig"] = {"S3OutputPath": "s3://led-out/out"}
    asked["CheckpointConfig"] = {"S3Uri": "s3://led-out/checkpoints"}
    asked["TensorBoardOutputConfig"] = {"S3OutputPath": "s3://led-out/board"}
    sagemaker.create_training_job(**asked)
    found = jobs.final(sagemaker, "linking")
    assert "somebody" not in found["FailureReason"]
    assert store.list_objects_v2(Bucket="led-out").get("KeyCount", 0) == 0
    for part, facts in (
        ("CheckpointConfig", {"S3Uri": "s3://led-out/c"}),
        ("TensorBoardOutputConfig", {"S3OutputPath": "s3://led-out/t"}),
    ):
        for path in ("/opt/ml/../../etc", "../out", "relative", "/", "/opt/ml"):
            asked = jobs.request("refused", "true", **{part: {**facts, "LocalPath": path}})
            with pytest.raises(sagemaker.exceptions.ClientError, match="LocalPath is the absolute"):
                sagemaker.create_training_job(**asked)


def test_a_failure_without_an_end_is_read_to_a_bound(service: Service) -> None:
    sagemaker = service.client("sagemaker")
    script = "yes wrong | head -c 300000000 > /opt/ml/output/failure; exit 3"
    sagemaker.create_training_job(**jobs.request("failing", script))
    assert jobs.final(sagemaker, "failing")["FailureReason"].startswith("AlgorithmError: wrong")


def test_at_its_end_all_is_in_the_files_of_the_databases(service: Service) -> None:
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(60) == 0
    for name in ("jobs.sqlite", "objects/index.sqlite"):
        journal = service.home / f"{name}-wal"
        assert not journal.exists() or not journal.stat().st_size
