"""An engine of another package: `syrtos run --on toy` and `syrtos serve --on toy` find it by its entry point."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import served_jobs

# Two "hosts" of this machine, reached by a shell; each attempt at a job has others.
ENGINE = """
import contextlib
from syrtos.engines.engine import Engine, ReachableHosts, check_values
from syrtos.engines.reservation import Node, Reservation
from syrtos.launch.spec import Host

class Toy(Engine):
    name = "toy"
    settings = {"shell": "the program that starts agents"}

    def reach(self, wanted):
        wanted.check(self.settings, self.name)
        hosts = (Host("toy-a", 1), Host("toy-b", 1))
        return contextlib.nullcontext(ReachableHosts(hosts, wanted.values["shell"], is_for_all=True))

    def check_jobs(self, values):
        check_values(values, self.settings, self.name)

    @contextlib.contextmanager
    def reserve(self, wanted, requester):
        requester.tell("toy: the hosts are asleep")
        yield Held(wanted)

class Held(Reservation):
    variables = {}

    def __init__(self, wanted):
        before = len(list(wanted.folder.glob("attempt-*")))
        self._nodes = tuple(Node(f"toy-{before}-{number}", "127.0.0.1", 3) for number in range(wanted.count))
        self.command = wanted.values["shell"]

    def nodes(self):
        return self._nodes

ENGINE = Toy()
"""
REACH = """#!/bin/sh
# `reach HOST COMMAND...`
export TOY_HOST="$1"
shift
exec sh -c "$*"
"""
SCRIPT = """
import syrtos
syrtos.init()
print(f"rank {syrtos.rank()} of {syrtos.size()}", flush=True)
"""


# It ends in its second attempt, which finds the checkpoint of the first.
COMMAND = """
echo "$(hostname) has $SM_NUM_CPUS processors on $TOY_HOST"; grep "algo-[12]$" /etc/hosts
[ -e /opt/ml/checkpoints/$(hostname) ] || { touch /opt/ml/checkpoints/$(hostname); sleep 100; }
date > /opt/ml/model/$(hostname)
"""


def install(tmp_path: Path) -> Path:
    """Puts the package into a folder, and returns the program that reaches its hosts."""
    facts = tmp_path / "toy-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[syrtos.engines]\ntoy = toy_engine:ENGINE\n")
    (tmp_path / "toy_engine.py").write_text(ENGINE)
    (tmp_path / "train.py").write_text(SCRIPT)
    reach = tmp_path / "reach"
    reach.write_text(REACH)
    reach.chmod(0o755)
    return reach


def test_an_entry_point_adds_an_engine(tmp_path: Path) -> None:
    reach = install(tmp_path)

    def syrtos(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "syrtos", "run", "--on", "toy", *words, "train.py"]
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
        )

    ended = syrtos("--with", f"shell={reach}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "rank 0 of 2\n"  # the log of rank 1 has what that prints
    refused = syrtos("--with", f"shel={reach}")
    assert refused.returncode != 0
    assert "Did you mean `shell`?" in refused.stderr


def lose(host: str) -> None:
    """Kills all that runs on a host, as a power cut does."""
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get("TOY_HOST") == host:
            process.kill()


def test_it_holds_nodes_for_jobs(tmp_path: Path) -> None:
    """A job whose node is lost runs again on others, from its checkpoints."""
    options = ("--on", "toy", "--with", f"shell={install(tmp_path)}")
    with served_jobs.served(tmp_path / "home", 2, *options, PYTHONPATH=str(tmp_path)) as clients:
        sagemaker, s3 = clients("sagemaker"), clients("s3")
        job = served_jobs.request(
            "held",
            COMMAND.strip().replace("\n", "; "),
            CheckpointConfig={"S3Uri": "s3://bucket/checkpoints"},
        )
        job["ResourceConfig"]["InstanceCount"] = 2
        s3.create_bucket(
            Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
        )
        sagemaker.create_training_job(**job)
        served_jobs.wait_until(
            lambda: s3.list_objects_v2(Bucket="bucket", Prefix="checkpoints/")["KeyCount"] == 2
        )
        lose("toy-0-1")
        found = served_jobs.final(sagemaker, "held")
        assert found["TrainingJobStatus"] == "Completed", found
        attempt = ["Starting", "Pending", "Starting", "Downloading", "Training"]
        assert served_jobs.statuses(found) == [
            *attempt,
            "Restarting",
            *attempt,
            "Uploading",
            "Completed",
        ]
        said = [
            path.read_text()
            for path in sorted((tmp_path / "home" / "jobs" / "held" / "logs").iterdir())
        ]
        assert "algo-1 has 3 processors on toy-0-0" in said[0]
        assert "was on toy-0-1" in said[0]
        assert "algo-2 has 3 processors on toy-1-1" in said[1]
        assert "127.0.0.1 algo-1" in said[1]


def test_what_jobs_on_nodes_can_t_have(tmp_path: Path) -> None:
    options = ("--on", "toy", "--with", f"shell={install(tmp_path)}")
    with served_jobs.served(tmp_path / "home", 2, *options, PYTHONPATH=str(tmp_path)) as clients:
        source = {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/data/"}
        channel = {
            "ChannelName": "train",
            "DataSource": {"S3DataSource": source},
            "InputMode": "Pipe",
        }
        with pytest.raises(
            clients("sagemaker").exceptions.ClientError,
            match="Pipe mode, and jobs of this service run on nodes of toy",
        ):
            clients("sagemaker").create_training_job(
                **served_jobs.request("piped", "true", InputDataConfig=[channel])
            )
