"""`syrtos env`: what a bug report needs, and no secrets."""

from __future__ import annotations

import os
import platform

import pytest

import syrtos
from syrtos import cli
from syrtos.cli.env import facts


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with nothing of this machine in it."""
    env: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", env)
    return env


def test_one_fact_to_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(facts())
    assert lines[0].split() == ["syrtos", syrtos.__version__]


def test_versions_of_what_matters() -> None:
    found = facts()
    assert found["python"].startswith(platform.python_version())
    assert found["numpy"][0].isdigit()
    assert {"keras", "tensorflow", "mpi4py", "mpich", "cores", "memory", "/dev/shm"} <= found.keys()


def test_who_started_the_process(environment: dict[str, str]) -> None:
    assert facts()["started by"] == "no launcher"
    environment["OMPI_COMM_WORLD_SIZE"] = "4"
    assert facts()["started by"] == "Open MPI's mpirun, 4 workers"


def test_variables_that_matter_are_shown_and_no_others(environment: dict[str, str]) -> None:
    environment.update(
        KERAS_BACKEND="jax", OMP_NUM_THREADS="2", AWS_SECRET_ACCESS_KEY="s3cr3t", HF_TOKEN="s3cr3t"
    )
    found = facts()
    assert (found["KERAS_BACKEND"], found["OMP_NUM_THREADS"]) == ("jax", "2")
    assert "s3cr3t" not in found.values()


def test_terraforms_secrets_are_not_shown(environment: dict[str, str]) -> None:
    environment["TF_TOKEN_app_terraform_io"] = "s3cr3t"
    assert "s3cr3t" not in facts().values()
