"""SageMaker's SDK v3 (sagemaker 3.x): ModelTrainers, trained by syrtos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sdks import HYPERPARAMETERS, SOURCE, Ran, Service, needs, same_weights, steps, unpacked

pytestmark = [needs("v3"), pytest.mark.slow]


def train(service: Service, digits: Path, folder: Path, code: dict[str, Any], fails: bool = False, **facts: Any) -> Ran:
    """Trains with a ModelTrainer of SDK v3."""
    facts |= {"source": str(SOURCE), "data": str(digits), "folder": str(folder), "code": code}
    ran = service.run("v3", "v3_train.py", **facts)
    assert bool(ran.answer["error"]) == fails, ran.answer["error"]
    return ran


def test_two_instances_train_as_one_world(service: Service, digits: Path, plain_model: Path, tmp_path: Path) -> None:
    ran = train(service, digits, tmp_path, {"entry_script": "digits.py"}, name="world", hyperparameters=HYPERPARAMETERS)
    assert "algo-1 has trained" in ran.output
    assert "algo-2 has trained" in ran.output
    model = unpacked(ran.answer["archive"], tmp_path / "model")
    same_weights(model / "digits.keras", plain_model)
    # basic_script_driver.py of the SDK: texts as they are, all else as JSON
    given = json.loads((model / "arguments.json").read_text())
    assert dict(zip(given[::2], given[1::2], strict=True)) == {
        f"--{name}": value if isinstance(value, str) else json.dumps(value) for name, value in _as_read().items()
    }
    assert steps(ran.answer["description"]) == ["Starting", "Downloading", "Training", "Uploading", "Completed"]


def _as_read() -> dict[str, Any]:
    """The driver reads every text as JSON if it can: "007" it can't, since JSON has no such number."""
    return dict(HYPERPARAMETERS)


def test_horovod_over_mpi(service: Service, digits: Path, tmp_path: Path) -> None:
    mpi = {"process_count_per_node": 1, "mpi_additional_options": ["-x", "NCCL_DEBUG=WARN"]}
    ran = train(service, digits, tmp_path, {"entry_script": "horovod_digits.py"}, name="mpi", mpi=mpi)
    assert "rank 0 of 2, 0 of 1 on algo-1" in ran.output
    assert "rank 1 of 2, 0 of 1 on algo-2" in ran.output
    assert "; WARN" in ran.output
    assert (unpacked(ran.answer["archive"], tmp_path / "model") / "digits.keras").is_file()


def test_a_command_runs_under_the_sdks_own_driver(service: Service, digits: Path, tmp_path: Path) -> None:
    code = {"command": "python witness.py --x 1", "args": ["--name", "a b", 3]}
    ran = train(service, digits, tmp_path, code, name="command", hyperparameters={"epochs": 3, "note": "a b"})
    model = unpacked(ran.answer["archive"], tmp_path / "model")
    for host in ("algo-1", "algo-2"):
        seen = json.loads((model / f"{host}.json").read_text())
        assert seen["arguments"] == ["--x", "1", "--name", "a b", "3"]
        assert (seen["host"], seen["folder"]) == (host, "/opt/ml/input/data/code")
        assert seen["variables"]["SM_HP_NOTE"] == "a b"
        assert seen["data"] == ["train/digits.npz"]
    assert "Running" in ran.output, "sm_train.sh says what it runs"


def test_a_mistake_of_the_script_is_the_sdks_error(service: Service, digits: Path, tmp_path: Path) -> None:
    ran = train(service, digits, tmp_path, {"entry_script": "failing.py"}, fails=True, name="failing")
    assert "there is no digit 'ten'" in ran.answer["error"]
    assert ran.answer["description"]["TrainingJobStatus"] == "Failed"
