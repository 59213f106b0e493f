"""A command that becomes one of an instance."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from syrtos.settings import FOR_WORKERS
from syrtos_jobs.runner.enter import InstanceSpec, can_leave_network


def test_a_command_does_not_take_itself_for_a_worker(tmp_path: Path) -> None:
    log = tmp_path / "log"
    spec = InstanceSpec(
        name="algo-1", root=str(tmp_path), isolated=False, folder=str(tmp_path), hosts="", mounts={}, fixed=(),
        variables={"OF_THE_JOB": "1"}, rank=0, output=str(log),
    )  # fmt: skip
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(dataclasses.asdict(spec)))
    env = {**os.environ, **dict.fromkeys(FOR_WORKERS, "x"), "PMI_RANK": "0"}
    subprocess.run(
        [sys.executable, "-m", "syrtos_jobs.runner.enter", str(path), "env"],
        env=env,
        capture_output=True,
        timeout=60,
        check=True,
    )
    found = {line.partition("=")[0] for line in log.read_text().splitlines()}
    assert "OF_THE_JOB" in found
    assert not found & {*FOR_WORKERS, "PMI_RANK"}


def test_without_a_network_there_are_only_neighbours() -> None:
    """Processes below the agent reach each other, and nothing of this machine."""
    if not can_leave_network():
        pytest.skip("needs namespaces of users and networks")
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        code = (
            "import socket\n"
            "inside = socket.create_server(('127.64.1.1', 0))\n"
            "socket.create_connection(inside.getsockname(), 5)\n"
            "print(len(socket.if_nameindex()))\n"
            f"socket.create_connection(('127.0.0.1', {port}), 5)\n"
        )
        words = [
            sys.executable,
            "-m",
            "syrtos_jobs.runner.enter",
            "--as-root",
            "--no-network",
            sys.executable,
            "-c",
            code,
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "1\n", done.stderr
    assert "ConnectionRefusedError" in done.stderr
