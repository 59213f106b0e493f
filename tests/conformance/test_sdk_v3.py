"""SageMaker's SDK v3 (sagemaker 3.x): ModelTrainers, trained by syrtos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sdks import (
    HYPERPARAMETERS,
    SOURCE,
    Ran,
    Service,
    needs,
    same_weights,
    started_plainly,
    steps,
    unpacked,
)

pytestmark = [needs("v3"), pytest.mark.slow]


def train(
    service: Service,
    digits: Path,
    folder: Path,
    code: dict[str, Any],
    fails: bool = False,
    **facts: Any,
) -> Ran:
    """Trains with a ModelTrainer of SDK v3."""
    facts |= {"source": str(SOURCE), "data": str(digits), "folder": str(folder), "code": code}
    ran = service.run("v3", "v3_train.py", **facts)
    assert bool(ran.answer["error"]) == fails, ran.answer["error"]
    return ran


def test_two_instances_train_as_one_world(
    service: Service, digits: Path, plain_model: Path, tmp_path: Path
) -> None:
    facts = {
        "name": "world",
        "hyperparameters": HYPERPARAMETERS,
        "measured": ["loss", "accuracy", "nothing"],
    }
    ran = train(service, digits, tmp_path, {"entry_script": "digits.py"}, **facts)
    assert "algo-1 has trained" in ran.output
    assert "algo-2 has trained" in ran.output
    model = unpacked(ran.answer["archive"], tmp_path / "model")
    same_weights(model / "digits.keras", plain_model)
    # basic_script_driver.py of the SDK: texts as they are, all else as JSON
    given = json.loads((model / "arguments.json").read_text())
    assert dict(zip(given[::2], given[1::2], strict=True)) == {
        f"--{name}": value if isinstance(value, str) else json.dumps(value)
        for name, value in _as_read().items()
    }
    assert steps(ran.answer["description"]) == [
        "Starting",
        "Downloading",
        "Training",
        "Uploading",
        "Completed",
    ]
    history, measured = (
        json.loads((model / "history.json").read_text()),
        ran.answer["measured"],
    )  # averages of seconds
    assert {*measured["metric_name"]} == {"loss", "accuracy"}
    for name, value in zip(measured["metric_name"], measured["value"], strict=True):
        assert min(history[name]) - 1e-6 <= value <= max(history[name]) + 1e-6


@pytest.mark.long
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends(service: Service, digits: Path, tmp_path: Path, backend: str) -> None:
    variables = {"KERAS_BACKEND": backend}
    plain = started_plainly(digits, tmp_path, variables)
    facts = {"name": backend, "hyperparameters": HYPERPARAMETERS, "environment": variables}
    ran = train(service, digits, tmp_path, {"entry_script": "digits.py"}, **facts)
    same_weights(
        unpacked(ran.answer["archive"], tmp_path / "job") / "digits.keras", plain / "digits.keras"
    )


def _as_read() -> dict[str, Any]:
    """The driver reads every text as JSON if it can: "007" it can't, since JSON has no such number."""
    return dict(HYPERPARAMETERS)


@pytest.mark.long
def test_horovod_over_mpi(service: Service, digits: Path, tmp_path: Path) -> None:
    mpi = {"process_count_per_node": 1, "mpi_additional_options": ["-x", "NCCL_DEBUG=WARN"]}
    ran = train(
        service, digits, tmp_path, {"entry_script": "horovod_digits.py"}, name="mpi", mpi=mpi
    )
    assert "rank 0 of 2, 0 of 1 on algo-1" in ran.output
    assert "rank 1 of 2, 0 of 1 on algo-2" in ran.output
    assert "; WARN" in ran.output
    assert (unpacked(ran.answer["archive"], tmp_path / "model") / "digits.keras").is_file()


@pytest.mark.long  # `test_own_hosts` has that driver with a world of two hosts
def test_a_command_runs_under_the_sdks_own_driver(
    service: Service, digits: Path, tmp_path: Path
) -> None:
    """Its sm_train.sh, unmodified, on each instance; a script that we start ourselves is told the same as by it."""
    driven, ours = tmp_path / "driven", tmp_path / "ours"
    for folder in (driven, ours):
        folder.mkdir()
    hyperparameters = {
        **HYPERPARAMETERS,
        "note": "no quotes: the driver writes a shell script without minding them",
    }
    code = {"command": "python witness.py --x 1", "args": ["--name", "a b", 3]}
    ran = train(service, digits, driven, code, name="command", hyperparameters=hyperparameters)
    assert "Executing command: python witness.py --x 1 --name 'a b' 3" in ran.output
    assert "Training Container Execution Completed" in ran.output
    model = unpacked(ran.answer["archive"], driven / "model")
    ran = train(
        service,
        digits,
        ours,
        {"entry_script": "witness.py"},
        name="ours",
        hyperparameters=hyperparameters,
    )
    own_model = unpacked(ran.answer["archive"], ours / "model")
    for host in ("algo-1", "algo-2"):
        told, own = (
            json.loads((folder / f"{host}.json").read_text()) for folder in (model, own_model)
        )
        assert told["arguments"] == ["--x", "1", "--name", "a b", "3"]
        assert (told["host"], told["folder"]) == (host, "/opt/ml/input/data/code")
        for fact in ("host", "folder", "data"):
            assert own[fact] == told[fact]
        assert own["config"]["hyperparameters.json"] == told["config"]["hyperparameters.json"]
        mine, its = (_told(one["variables"]) for one in (own, told))
        assert its["SM_ENTRY_SCRIPT"] is None  # of a command
        its["SM_ENTRY_SCRIPT"] = "witness.py"
        assert {
            name: (mine.get(name), value) for name, value in its.items() if mine.get(name) != value
        } == {}


def _told(variables: dict[str, str]) -> dict[str, Any]:
    """What the driver tells scripts, parsed; of all that it puts together in one variable, what is in no other."""
    told = {name: _parsed(text) for name, text in variables.items() if name.startswith("SM_")}
    told["SM_CHANNELS"] = sorted(told["SM_CHANNELS"])
    whole = told.pop("SM_TRAINING_ENV")
    known = ("channel_input_dirs", "hyperparameters", "master_addr", "input_data_dir")
    return told | {f"SM_TRAINING_ENV {name}": whole.get(name) for name in known}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def test_a_mistake_of_the_script_is_the_sdks_error(
    service: Service, digits: Path, tmp_path: Path
) -> None:
    ran = train(
        service, digits, tmp_path, {"entry_script": "failing.py"}, fails=True, name="failing"
    )
    assert "there is no digit 'ten'" in ran.answer["error"]
    assert ran.answer["description"]["TrainingJobStatus"] == "Failed"
