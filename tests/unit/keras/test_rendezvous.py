"""Where workers of several hosts meet."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import cast

import pytest

from syrtos import topology
from syrtos.comm.world import Session
from syrtos.errors import ConfigurationError
from syrtos.keras import rendezvous


def found(*others: list[str]) -> str:
    """The address of this host, in a world with workers of others: pairs of machine and address."""
    comm = SimpleNamespace(allgather_object=lambda mine: [mine, *others])
    return rendezvous.address_of_host("JAX", cast(Session, SimpleNamespace(comm=comm)))


def named(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    def gethostbyname(name: str) -> str:
        if address is None:
            raise socket.gaierror(-2, "Name or service not known")
        return address

    monkeypatch.setattr(socket, "gethostbyname", gethostbyname)


def test_a_host_is_reached_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "10.1.2.3")
    assert found(["another machine", "10.1.2.4"]) == "10.1.2.3"
    with pytest.raises(ConfigurationError, match="the same address"):
        found(["another machine", "10.1.2.3"])


@pytest.mark.parametrize("address", ["127.0.1.1", None])
def test_a_name_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    """Debian's /etc/hosts gives a host's own name a loopback address: a route leads to the address of a network."""
    named(monkeypatch, address)
    monkeypatch.setattr(topology, "_ELSEWHERE", "127.0.0.9")  # a route that every machine has
    assert found() == "127.0.0.1"
    monkeypatch.setattr(topology, "_ELSEWHERE", "no address")
    with pytest.raises(ConfigurationError, match="no default route"):
        found()
