"""The program that stands in the place of ssh, as a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from syrtos.engines.reservation import Node
from syrtos.launch.spec import Host
from syrtos_clusters.ray import agent_socket

REACH = [sys.executable, "-P", "-m", "syrtos_clusters.ray.reach"]


class Cat:
    """Starts a command of this machine in the place of one elsewhere."""

    def hosts(self) -> tuple[Host, ...]:
        return Host("a", 2), Host("b", 1)

    def nodes(self) -> tuple[Node, ...]:
        return Node("a", "10.0.0.1", 2), Node("b", "10.0.0.2", 1)

    def start(self, host: str, command: Sequence[str]) -> tuple[int, int]:
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        with theirs:
            subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=write)
        os.close(write)
        return ours.detach(), read


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    path = str(tmp_path / "door")
    opened = agent_socket.AgentSocket(path, Cat())
    yield {**os.environ, agent_socket.VARIABLE: path}
    opened.close()


def reach(
    env: dict[str, str], *words: str, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*REACH, *words], input=given, env=env, capture_output=True, timeout=120, check=False
    )


def test_hosts_are_listed(env: dict[str, str]) -> None:
    assert reach(env).stdout == b"a:2\nb:1\n"


def test_what_is_said_reaches_the_other_side_and_comes_back(env: dict[str, str]) -> None:
    said = os.urandom(1 << 20)
    done = reach(env, "a", "sh", "-c", "'head -c 1048576; echo complaint >&2'", given=said)
    assert done.stdout == said
    assert done.stderr == b"complaint\n"


def test_without_a_run_it_says_what_to_do(tmp_path: Path) -> None:
    done = reach({**os.environ, agent_socket.VARIABLE: str(tmp_path / "door")}, "a", "true")
    assert done.returncode == 1
    assert b"Give the command with the same --run-dir again" in done.stderr
