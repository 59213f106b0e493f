"""A YAML file of a job: values of a wrong type are named."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from syrtos.errors import ConfigurationError
from syrtos_jobs.client import job_file
from syrtos_jobs.client.estimator import Estimator


def test_values_of_all_kinds(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "entry_point: t.py\ninstance_count: 2\nhyperparameters: {epochs: 3}\ninputs: {training:"
        " {uri: /data}}\nuse_spot_instances: true\ntags: [{Key: a, Value: b}]\nenvironment: {A: '1'}\n"
    )
    found = job_file.read(path)
    assert found["hyperparameters"] == {"epochs": 3}
    assert found["entry_point"] == str(tmp_path / "t.py")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("hyperparameters: 5", "`hyperparameters` should be a mapping. Received: 5."),
        ("environment: [1]", "`environment` should be a mapping"),
        (
            "environment: {1: b}",
            "`environment` should have texts: write numbers, true and false in quotes",
        ),
        (
            "environment: {A: 2}",
            "`environment` should have texts: write numbers, true and false in quotes",
        ),
        ("inputs: 5", "`inputs` should be a text or a mapping"),
        ("inputs: {a: 5}", "`inputs` should have texts, or mappings with `uri`. Received: 5"),
        ("dependencies: 5", "`dependencies` should be a list"),
        ("metric_definitions: [a]", "`metric_definitions` should have mappings"),
        ("instance_count: x", "`instance_count` should be a whole number. Received: 'x'"),
        ("max_run: true", "`max_run` should be a whole number"),
        ("output_path: 5", "`output_path` should be a text"),
        ("source_dir: 5", "`source_dir` should be a text"),
    ],
)
def test_a_value_of_a_wrong_type_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"entry_point: t.py\n{line}\n")
    with pytest.raises(ConfigurationError) as error:
        job_file.read(path)
    assert says in str(error.value)


def test_each_argument_of_an_estimator_has_a_kind() -> None:
    for name in inspect.signature(Estimator.__init__).parameters:
        if name not in ("self", "home"):
            assert "should be" in job_file._wrong_type(name, object())
