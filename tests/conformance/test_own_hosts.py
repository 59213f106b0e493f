"""`syrtos.sagemaker.Syrtos` with SDK v3: against `syrtos serve`, and what the SDK has uploaded, unmodified, on two hosts as SageMaker has them.

SageMaker itself is not at hand: its hosts are network namespaces here, with the files that its containers find.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from own_hosts import Job
from sdks import HYPERPARAMETERS, SOURCE, Ran, Service, needs, same_weights, unpacked

from syrtos.launch.generations import has_snapshot
from syrtos.report.read import load
from syrtos.sagemaker.driver import SECRET

pytestmark = [needs("v3"), pytest.mark.slow]

# AWS's environment.py writes a shell script without minding quotes.
_PLAIN = {**HYPERPARAMETERS, "note": "no quotes: $HOME; é"}
_LONGEST = 120.0


@pytest.fixture(scope="module")
def trained(
    service: Service, digits: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Ran, Path]:
    """A ModelTrainer's job on the service, and the folder with the channels that the SDK has uploaded for it."""
    folder = tmp_path_factory.mktemp("trained")
    facts: dict[str, Any] = {
        "source": str(SOURCE),
        "data": str(digits),
        "folder": str(folder),
        "name": "own-hosts",
    }
    facts |= {
        "code": {"entry_script": "digits.py"},
        "hyperparameters": _PLAIN,
        "wanted": ["sm_drivers", "code"],
    }
    return service.run("v3", "v3_train.py", **facts, syrtos={"workers_per_host": 1}), folder


@pytest.fixture(scope="module")
def secret(trained: tuple[Ran, Path]) -> str:
    return (trained[1] / "sm_drivers" / "distributed_drivers" / SECRET).read_text()


def test_the_service_runs_the_jobs_own_driver(
    trained: tuple[Ran, Path], secret: str, plain_model: Path, tmp_path: Path
) -> None:
    ran, _ = trained
    assert ran.answer["error"] == ""
    assert "Running Syrtos Driver" in ran.output
    assert "2 workers on algo-1, algo-2" in ran.output
    assert "algo-1 has trained" in ran.output  # what other workers print is in their logs
    model = unpacked(ran.answer["archive"], tmp_path / "model")
    same_weights(model / "digits.keras", plain_model)
    given = json.loads((model / "arguments.json").read_text())
    assert dict(zip(given[::2], given[1::2], strict=True)) == {
        f"--{name}": value if isinstance(value, str) else json.dumps(value)
        for name, value in _PLAIN.items()
    }
    assert secret not in ran.output
    assert secret not in json.dumps(ran.answer["description"])
    assert ran.answer["description"]["ProgressInfo"]["CurrentEpoch"] == HYPERPARAMETERS["epochs"]


def _job(trained: tuple[Ran, Path], data: Path, folder: Path, **hyperparameters: Any) -> Job:
    channels = {name: trained[1] / name for name in ("sm_drivers", "code")}
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in hyperparameters.items()
    }
    return Job(folder, {**channels, "train": data}, texts)


@pytest.mark.root
def test_hosts_of_sagemaker_train_as_one_world(
    trained: tuple[Ran, Path], secret: str, digits: Path, plain_model: Path, tmp_path: Path
) -> None:
    job = _job(trained, digits, tmp_path, **_PLAIN)
    ran = job.run()
    assert [code for code, _ in ran] == [0, 0], ran
    assert "Running Syrtos Driver" in ran[1][1]
    assert "2 workers on algo-1, algo-2" in ran[0][1]
    assert not any(secret in output for _, output in ran)
    same_weights(job.ml(0) / "model" / "digits.keras", plain_model)
    report = load(job.ml(0) / "checkpoints" / "syrtos")
    assert [rank.host for rank in report.generations[-1].ranks] != []
    assert len(report.generations[-1].ranks) == 2
    assert not report.missing


@pytest.mark.root
def test_a_mistake_of_the_script_is_the_jobs_failure(
    trained: tuple[Ran, Path], digits: Path, tmp_path: Path
) -> None:
    job = _named(_job(trained, digits, tmp_path), "failing.py", tmp_path)
    ran = job.run()
    assert all(code for code, _ in ran), ran
    assert "there is no digit 'ten'" in (job.ml(0) / "output" / "failure").read_text()


@pytest.mark.root
@pytest.mark.long  # `test_pods` stops all hosts of such a run too
def test_an_interrupted_job_goes_on_from_its_checkpoints(
    trained: tuple[Ran, Path], digits: Path, tmp_path: Path
) -> None:
    """As a spot job: both machines vanish, others with other names get the checkpoints and run the same command."""
    data = shutil.copytree(digits, tmp_path / "data")
    job = _named(_job(trained, data, tmp_path / "job"), "paced.py", tmp_path)
    run_dir = job.ml(0) / "checkpoints" / "syrtos"
    with job.started() as (_, processes):
        deadline = time.monotonic() + _LONGEST
        while not has_snapshot(run_dir):
            assert processes[0].poll() is None, processes[0].communicate()
            assert time.monotonic() < deadline
            time.sleep(0.2)
    for process in processes:
        process.wait(_LONGEST)
    (data / "go").touch()
    shutil.copytree(
        run_dir, job.ml(1) / "checkpoints" / "syrtos", dirs_exist_ok=True
    )  # each host gets all of them
    ran = job.run()
    assert [code for code, _ in ran] == [0, 0], ran
    assert "the same run was stopped in /opt/ml/checkpoints/syrtos, and goes on" in ran[0][1]
    assert "goes on from step" in ran[0][1]
    assert "algo-1 has trained 600 steps" in ran[0][1]


def _named(job: Job, script: str, folder: Path) -> Job:
    """The same job with another entry script: the SDK writes its name into one file."""
    drivers = shutil.copytree(job.channels["sm_drivers"], folder / "drivers")
    path = drivers / "sourcecode.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "entry_script": script}))
    return Job(job.folder, {**job.channels, "sm_drivers": drivers}, job.hyperparameters)
