"""Connections from agents to the process that speaks with Ray.

They prove that they know a key, which only Ray has passed on.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

_LONGEST_TICKET = 64
# Seconds that a connection may take to prove what it knows, and that a node has to connect.
_PROOF = 10


class Links:
    """A socket that listens for agents, at one address of this machine.

    Attributes:
        address: where it listens.
        key: what a connection must know.
    """

    def __init__(self, address: str) -> None:
        self.key = secrets.token_bytes(32)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=256)
        self.address: tuple[str, int] = (address, self._listener.getsockname()[1])
        self._came = threading.Condition()
        self._expected: dict[str, int | None] = {}  # descriptors by ticket
        threading.Thread(target=self._accept, name="syrtos-links", daemon=True).start()

    def ticket(self) -> str:
        """Returns a new word by which a connection says which one it is."""
        with self._came:
            ticket = secrets.token_hex(16)
            self._expected[ticket] = None
        return ticket

    def take(self, ticket: str, seconds: float) -> int | None:
        """Waits for the connection with a ticket, and returns its descriptor.

        Returns None if the connection has not come in time.
        """
        with self._came:
            self._came.wait_for(lambda: self._expected[ticket] is not None, seconds)
            return self._expected.pop(ticket)

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._welcome, args=(connected,), daemon=True).start()

    def _welcome(self, connected: socket.socket) -> None:
        """Takes a connection that knows the key; drops others, which delay nobody."""
        with (
            contextlib.suppress(AuthenticationError, EOFError, OSError, UnicodeDecodeError),
            _limiting_reads(connected),
        ):
            with _connection(connected) as connection:
                deliver_challenge(connection, self.key)
                answer_challenge(connection, self.key)
                ticket = connection.recv_bytes(_LONGEST_TICKET).decode()
            with self._came:
                # -1: nobody waits for this ticket, or not any more.
                if self._expected.get(ticket, -1) is None:
                    self._expected[ticket] = os.dup(connected.fileno())
                    self._came.notify_all()
        connected.close()

    def close(self) -> None:
        """Stops listening."""
        with contextlib.suppress(OSError):
            # `close` alone leaves a thread in `accept`.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def dial(address: tuple[str, int], key: bytes, ticket: str) -> socket.socket:
    """Connects to `Links` and returns the connection once both sides have proved to know the key.

    Raises:
        OSError: nothing listens there.
        AuthenticationError: another key is known there.
    """
    connected = socket.create_connection(address, timeout=_PROOF)
    # A socket with a timeout does not block, and `Connection` can't read from it.
    connected.settimeout(None)
    with _limiting_reads(connected), _connection(connected) as connection:
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
        connection.send_bytes(ticket.encode())
    return connected


def _connection(connected: socket.socket) -> Connection:
    return Connection(os.dup(connected.fileno()))


@contextlib.contextmanager
def _limiting_reads(connected: socket.socket) -> Iterator[None]:
    """Context manager: reading from a peer that says nothing for some seconds raises an OSError."""
    # `Connection` reads from the descriptor itself, where a timeout of Python's socket does not
    # hold.
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _PROOF, 0))
    yield
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
