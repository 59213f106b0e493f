"""The questions that commands of a run ask, and their answers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from syrtos.engines.reservation import Node
from syrtos.errors import LaunchError, SyrtosError
from syrtos.launch.spec import Host
from syrtos_clusters.ray.agent_socket import AgentSocket, ask


class Echo:
    """Knows one host, and starts nothing: what is written to it comes back."""

    def hosts(self) -> tuple[Host, ...]:
        return Host("a", 2), Host("b", 1)

    def nodes(self) -> tuple[Node, ...]:
        return Node("a", "10.0.0.1", 2), Node("b", "10.0.0.2", 1)

    def start(self, host: str, command: Sequence[str]) -> tuple[int, int]:
        if host != "a":
            raise LaunchError(f"there is no {host}")
        read, write = os.pipe()
        os.write(write, " ".join(command).encode())
        return read, write


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    door = AgentSocket(str(tmp_path / "door"), Echo())
    yield str(tmp_path / "door")
    door.close()


def test_it_names_the_hosts(path: str) -> None:
    assert ask(path) == ("a:2 b:1", [])


def test_it_names_the_nodes_with_their_addresses(path: str) -> None:
    assert ask(path, nodes=True)[0] == "a=10.0.0.1=2 b=10.0.0.2=1"


def test_it_hands_descriptors_over(path: str) -> None:
    text, (read, write) = ask(path, host="a", command=["agent", "now"])
    os.close(write)
    assert (text, os.read(read, 100), os.read(read, 1)) == ("", b"agent now", b"")
    os.close(read)


def test_a_refusal_is_raised(path: str) -> None:
    with pytest.raises(SyrtosError, match="there is no c"):
        ask(path, host="c", command=["agent"])


def test_a_question_that_makes_no_sense_is_answered(path: str) -> None:
    with pytest.raises(SyrtosError, match="KeyError"):
        ask(path, host="a")


def test_nobody_answers_after_the_end(tmp_path: Path) -> None:
    AgentSocket(str(tmp_path / "door"), Echo()).close()
    with pytest.raises(OSError):
        ask(str(tmp_path / "door"))
