from __future__ import annotations

import socket

import pytest

from syrtos.launch.remote.rendezvous import _interface_of


@pytest.mark.parametrize(
    ("name", "known_as", "interface"),
    [
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("workstation", "127.0.1.1", ""),  # Debian's /etc/hosts
        ("workstation", "127.0.0.2", ""),  # SUSE's
        (
            "algo-1",
            "127.70.3.1",
            "127.70.3.1",
        ),  # two jobs of one machine have other addresses, and the same port
        ("gateway", "192.0.2.1", ""),  # an address of no interface here
        ("not-known-yet", "", ""),
    ],
)
def test_the_first_host_listens_where_others_reach_it(
    monkeypatch: pytest.MonkeyPatch, name: str, known_as: str, interface: str
) -> None:
    def known(_: str) -> str:
        if not known_as:
            raise socket.gaierror
        return known_as

    monkeypatch.setattr(socket, "gethostbyname", known)
    assert _interface_of(name) == interface
