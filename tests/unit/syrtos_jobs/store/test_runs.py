"""What an attempt at a job leaves about itself."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from syrtos_jobs.requests.request import Job, read
from syrtos_jobs.runner import versions
from syrtos_jobs.store import runs


def job(entry: list[str] | None = None, **given: Any) -> Job:
    command = {"ContainerEntrypoint": entry} if entry else {}
    request = {
        "TrainingJobName": "job",
        "AlgorithmSpecification": {"TrainingInputMode": "File", **command},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {"InstanceType": "ml.x", "InstanceCount": 2, "VolumeSizeInGB": 1},
        "HyperParameters": {name: json.dumps(value) for name, value in given.items()},
    }
    return read(request, {})


def test_the_command_of_a_script() -> None:
    code = {
        "sagemaker_program": "src/train.py",
        "sagemaker_submit_directory": "s3://bucket/code.tar.gz",
    }
    mpi = {"sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2}
    assert runs.describe_program(job(**code, **mpi, epochs=3)) == {
        "workers": 4,
        "workers_per_instance": 2,
        "program": {"name": "src/train.py", "arguments": ["--epochs", "3"]},
        "command": ["python", "src/train.py", "--epochs", "3"],
        "folder": "/opt/ml/code",
        "source": "s3://bucket/code.tar.gz",
    }


def test_the_command_of_a_container() -> None:
    found = runs.describe_program(job(["/bin/bash", "/opt/ml/input/data/code/run.sh"]))
    assert found["program"] == {"name": "run.sh"}
    assert found["command"] == ["/bin/bash", "/opt/ml/input/data/code/run.sh"]
    assert runs.describe_program(job(["/usr/bin/env"]))["program"] == {"name": "env"}


def test_the_last_attempt_counts(tmp_path: Path) -> None:
    assert runs.read(tmp_path) == {}
    for attempt in (2, 9, 10):
        runs.write(tmp_path / f"attempt-{attempt}", job(["/bin/true"]), {"keras": str(attempt)})
    assert [path.name for path in runs.attempts(tmp_path)] == [
        "attempt-2",
        "attempt-9",
        "attempt-10",
    ]
    assert runs.read(tmp_path)["versions"] == {"keras": "10"}
    (tmp_path / "attempt-10" / "run.json").write_text("{half")
    assert runs.read(tmp_path)["versions"] == {"keras": "9"}


def test_versions_of_another_interpreter(tmp_path: Path) -> None:
    here = versions.local_versions()
    assert {"python", "syrtos", "keras", "numpy"} <= here.keys()
    assert versions.of(Path(sys.executable), {}) == here
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    assert versions.of(other, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) == here
    assert versions.of(tmp_path / "none", {}) == {}
