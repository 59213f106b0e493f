"""SageMaker's own hosts, as two hosts of this machine: each has a network of its own, /opt/ml, and the names algo-1 and algo-2.

What runs there is what SDK v3 has uploaded with a job, by the command that it asks SageMaker to run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import netns

from syrtos_jobs.runner.enter import InstanceSpec

HOSTS = ("algo-1", "algo-2")
_ENTRYPOINT = (
    "/bin/bash",
    "-c",
    "chmod +x {0}/sm_train.sh && {0}/sm_train.sh".format("/opt/ml/input/data/sm_drivers"),
)
_PATIENCE = 300.0


@dataclasses.dataclass(frozen=True)
class Job:
    """A job whose channels are there, and that has not begun.

    Attributes:
        folder: of its hosts' folders.
        channels: the folder of each channel, by name.
        hyperparameters: as CreateTrainingJob has them.
    """

    folder: Path
    channels: Mapping[str, Path]
    hyperparameters: Mapping[str, str]

    def ml(self, host: int) -> Path:
        """The folder that a host sees as /opt/ml."""
        return self.folder / HOSTS[host] / "ml"

    @contextlib.contextmanager
    def started(self) -> Iterator[tuple[netns.Hosts, list[subprocess.Popen[str]]]]:
        """Starts the container's command on both hosts, which have other machines' names each time."""
        names = self.folder / "hosts"
        names.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{address} {name}" for address, name in zip(netns.ADDRESSES, HOSTS, strict=True)]
        names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        with netns.two_hosts_or_skip(None) as hosts:
            yield hosts, [self._start(hosts, host, names) for host in range(len(HOSTS))]

    def run(self) -> list[tuple[int, str]]:
        """Exit code and output of each host."""
        with self.started() as (_, processes):
            outputs = [process.communicate(timeout=_PATIENCE) for process in processes]
        return [
            (process.returncode, out + err)
            for process, (out, err) in zip(processes, outputs, strict=True)
        ]

    def _start(self, hosts: netns.Hosts, host: int, names: Path) -> subprocess.Popen[str]:
        self._fill(host)
        home = self.folder / HOSTS[host] / "home"
        home.mkdir(exist_ok=True)
        spec = InstanceSpec(
            name=f"ip-{hosts.first_pids[host]}",
            root=str(self.ml(host)),
            isolated=True,
            folder="/",
            hosts=str(names),
            mounts={},
            fixed=(),
            variables={"TRAINING_JOB_NAME": "ours", "AWS_REGION": "us-west-2", "HOME": str(home)},
        )
        path = self.folder / f"{HOSTS[host]}.json"
        path.write_text(json.dumps(dataclasses.asdict(spec)))
        bare = [
            "env",
            f"PATH={Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        ]
        return hosts.start(
            [*bare, sys.executable, "-m", "syrtos_jobs.runner.enter", str(path), *_ENTRYPOINT],
            on=host,
        )

    def _fill(self, host: int) -> None:
        """Fills /opt/ml as SageMaker does before it starts a container; what checkpoints there are stays."""
        ml = self.ml(host)
        for name in ("input", "output", "model"):
            shutil.rmtree(ml / name, ignore_errors=True)
        for name in ("input/config", "input/data", "output", "model", "checkpoints"):
            (ml / name).mkdir(parents=True, exist_ok=True)
        for name, folder in self.channels.items():
            shutil.copytree(folder, ml / "input" / "data" / name)
        for name, facts in self._configuration(host).items():
            (ml / "input" / "config" / f"{name}.json").write_text(json.dumps(facts))

    def _configuration(self, host: int) -> dict[str, Any]:
        one = {
            "TrainingInputMode": "File",
            "S3DistributionType": "FullyReplicated",
            "RecordWrapperType": "None",
        }
        group = {
            "instance_group_name": "homogeneousCluster",
            "instance_type": "ml.m5.large",
            "hosts": HOSTS,
        }
        return {
            "hyperparameters": dict(self.hyperparameters),
            "inputdataconfig": dict.fromkeys(self.channels, one),
            "resourceconfig": {
                "current_host": HOSTS[host],
                "current_instance_type": "ml.m5.large",
                "current_group_name": "homogeneousCluster",
                "hosts": HOSTS,
                "instance_groups": [group],
                "network_interface_name": netns.INTERFACE,
            },
        }
