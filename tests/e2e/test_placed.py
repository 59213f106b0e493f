"""`python -m syrtos train.py` on each host, whose place variables of an engine tell; two hosts are two processes here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pauses
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pauses.undisturbed(2, tmp_path_factory.mktemp("undisturbed"))


class Hosts:
    """Two hosts that meet at a port of this machine, and keep their run in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self._port = sock.getsockname()[1]

    def start(self, rank: int) -> subprocess.Popen[str]:
        place = {
            "SYRTOS_NODE_RANK": str(rank),
            "SYRTOS_NODES": "2",
            "SYRTOS_FIRST": f"127.0.0.1:{self._port}",
        }
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "syrtos",
                "run",
                "--on",
                "placed",
                "--run-dir",
                "run",
                str(pauses.SCRIPT),
                ".",
            ],
            env={**os.environ, **place, "SYRTOS_SECRET": "of this test"},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def reached(self) -> bool:
        return (self.folder / "reached").exists()

    def go(self) -> None:
        (self.folder / "go").touch()


def ends(*hosts: subprocess.Popen[str]) -> list[str]:
    return [host.communicate(timeout=300)[0] for host in hosts]


@pytest.mark.long  # `test_pods` stops all hosts too
def test_a_signal_to_one_host_stops_all_and_the_same_command_goes_on(
    tmp_path: Path, expected: str
) -> None:
    hosts = Hosts(tmp_path)
    first, second = hosts.start(0), hosts.start(1)
    pauses.wait_for(hosts.reached)
    second.send_signal(signal.SIGTERM)
    said = ends(first, second)
    assert (first.returncode, second.returncode) == (75, 75), said
    hosts.go()
    first, second = hosts.start(0), hosts.start(1)
    said = ends(first, second)
    assert (first.returncode, second.returncode) == (0, 0), said
    assert "the same run was stopped" in said[0]
    assert "epoch 1\n" not in said[0]
    assert pauses.weights_of(said[0]) == expected


@pytest.mark.long  # `test_pods` loses all hosts of such a run, `test_recovery_on_hosts` one
def test_a_host_that_is_lost_comes_back(tmp_path: Path, expected: str) -> None:
    hosts = Hosts(tmp_path)
    first, second = hosts.start(0), hosts.start(1)
    pauses.wait_for(hosts.reached)
    second.kill()
    hosts.go()
    again = hosts.start(1)
    said = ends(first, again)
    second.communicate()
    assert (first.returncode, again.returncode) == (0, 0), said
    assert "is back" in said[0]
    assert "Generation 2 goes on from step " in said[0]
    assert pauses.weights_of(said[0]) == expected


def test_no_place_is_an_error() -> None:
    command = [sys.executable, "-m", "syrtos", "run", "--on", "placed", str(pauses.SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "no variable says that this command was started on several hosts" in done.stderr
