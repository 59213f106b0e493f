"""The driver's command line and variables, and what it installs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from syrtos.sagemaker import driver

TWO = {
    "SM_HOSTS": '["algo-1","algo-2"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_ENTRY_SCRIPT": "train.py",
    "SM_NUM_GPUS": "0",
    "SM_NETWORK_INTERFACE_NAME": "eth0",
}
ONE = {**TWO, "SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}
START = [sys.executable, "-m", "syrtos", "run"]


def test_hosts_meet_and_a_host_alone_has_all_workers() -> None:
    config: driver.DriverOptions = {"workers_per_host": 2, "options": ["--batch", "per-worker"]}
    rest = ["--run-dir", driver.RUN_DIR, "--batch", "per-worker", "train.py"]
    assert driver.command(config, TWO) == [*START, "--on", "placed", *rest]
    assert driver.command(config, ONE) == [*START, "-n", "2", *rest]


@pytest.mark.parametrize(
    ("asked", "gpus", "expected"), [(3, "8", 3), (None, "8", 8), (None, "0", 1), (None, "", 1)]
)
def test_a_worker_for_each_gpu_where_no_number_is_given(
    asked: int | None, gpus: str, expected: int
) -> None:
    assert driver.workers({"workers_per_host": asked}, {"SM_NUM_GPUS": gpus}) == expected


def test_libraries_use_the_interface_between_the_hosts() -> None:
    assert driver.variables({}, TWO) == {
        "SYRTOS_SLOTS": "1",
        "UCX_NET_DEVICES": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
    }
    assert driver.variables({}, {**TWO, "UCX_NET_DEVICES": "efa0"})["NCCL_SOCKET_IFNAME"] == "eth0"
    assert "UCX_NET_DEVICES" not in driver.variables({}, {**TWO, "UCX_NET_DEVICES": "efa0"})
    assert driver.variables({}, ONE) == {"SYRTOS_SLOTS": "1"}


def test_hyperparameters_are_written_as_the_sdks_drivers_write_them() -> None:
    """common/utils.py of its container drivers, 1.27: `hyperparameters_to_cli_args`."""
    values: Mapping[str, Any] = {
        "lr": 0.1,
        "name": "a b",
        "flag": True,
        "none": None,
        "list": [1, "x"],
        "as-text": "[1,2]",
    }
    assert driver.arguments(values) == [
        "--lr", "0.1", "--name", "a b", "--flag", "true", "--none", "null", "--list", '[1, "x"]', "--as-text", "[1, 2]",
    ]  # fmt: skip


def test_a_shell_script_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"'run\.sh'.*trains Python scripts"):
        driver.command({}, {**TWO, "SM_ENTRY_SCRIPT": "run.sh"})


class _Pip:
    """Takes the place of `subprocess.run`."""

    def __init__(self, code: int = 0) -> None:
        self.commands: list[list[str]] = []
        self._code = code

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        return subprocess.CompletedProcess(command, self._code, stderr="a line\nno such package")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> _Pip:
    found = _Pip()
    monkeypatch.setattr(driver.subprocess, "run", found)
    return found


def test_wheels_that_came_with_the_job_are_installed_without_an_index(
    pip: _Pip, tmp_path: Path
) -> None:
    driver.install({"version": "0.1.0"}, tmp_path, {})
    assert pip.commands[0][-4:] == ["--no-index", "--find-links", str(tmp_path), "syrtos==0.1.0"]


def test_what_is_there_is_not_installed(pip: _Pip, tmp_path: Path) -> None:
    driver.install({"version": "0.1.0"}, tmp_path / "wheels", {})
    assert not pip.commands


def test_the_environment_of_a_service_is_not_changed(pip: _Pip, tmp_path: Path) -> None:
    driver.install({"version": "9"}, tmp_path, {"SYRTOS_JOB": "here/job"})
    assert not pip.commands


def test_a_failed_installation_is_the_jobs_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(driver.subprocess, "run", _Pip(1))
    monkeypatch.setattr(driver, "_FAILURE", str(tmp_path / "failure"))
    with pytest.raises(SystemExit, match="no such package"):
        driver.install({"version": "0.1.0"}, tmp_path, {})
    assert "`Syrtos(wheels=True, python=...)`" in (tmp_path / "failure").read_text()


def test_it_needs_nothing_of_syrtos_and_passes_the_exit_code_on(tmp_path: Path) -> None:
    """As a copy in an interpreter that finds no package but those of the standard library."""
    shutil.copyfile(driver.__file__, tmp_path / "driver.py")
    (tmp_path / "secret").write_text("s" * 20)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@" ${#SYRTOS_SECRET}\nexit 3\n')
    python.chmod(0o755)
    env = {
        **ONE,
        "SM_DISTRIBUTED_CONFIG": json.dumps({"version": "0", "options": []}),
        "SYRTOS_JOB": "x",
    }
    code = f"import sys, driver; driver._FAILURE = 'failure'; sys.executable = {str(python)!r}; driver.main()"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert f"-m syrtos run -n 1 --run-dir {driver.RUN_DIR} train.py 20" in done.stdout
    assert "s" * 20 not in done.stdout
    assert (tmp_path / "failure").read_text().startswith("`syrtos run` ended with exit code 3")
