"""Connections of agents, which must know the key."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from multiprocessing import AuthenticationError

import pytest

from syrtos_clusters.ray.links import Links, dial

LONG = 60.0


@pytest.fixture
def links() -> Iterator[Links]:
    listening = Links("127.0.0.1")
    yield listening
    listening.close()


def test_both_ends_are_joined(links: Links) -> None:
    tickets = [links.ticket() for _ in range(2)]
    ends = [dial(links.address, links.key, ticket) for ticket in tickets]
    for ticket, end in reversed(list(zip(tickets, ends, strict=True))):
        taken = links.take(ticket, LONG)
        assert taken is not None
        os.write(taken, ticket.encode())
        assert end.recv(100) == ticket.encode()
        os.close(taken)
        assert end.recv(100) == b""
        end.close()


def test_another_key_is_refused(links: Links) -> None:
    ticket = links.ticket()
    with pytest.raises((AuthenticationError, EOFError, OSError)):
        dial(links.address, b"another", ticket)
    assert links.take(ticket, 0.1) is None


def test_a_stranger_who_says_nothing_delays_nobody(links: Links) -> None:
    with socket.create_connection(links.address):
        ticket = links.ticket()
        with dial(links.address, links.key, ticket):
            taken = links.take(ticket, LONG)
            assert taken is not None
            os.close(taken)


def test_a_ticket_is_good_for_one_connection(links: Links) -> None:
    ticket = links.ticket()
    with dial(links.address, links.key, ticket):
        taken = links.take(ticket, LONG)
        assert taken is not None
        os.close(taken)
    with dial(links.address, links.key, ticket) as again:
        assert again.recv(1) == b""


def test_nothing_listens_after_the_end() -> None:
    links = Links("127.0.0.1")
    links.close()
    with pytest.raises(OSError):
        dial(links.address, links.key, "ticket")
