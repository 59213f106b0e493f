"""A socket of this machine at which commands of a run ask for hosts, and for agents on them.

The socket is in a folder that only this user may enter. A question is a line of JSON; the answer is
a line of text, with two descriptors where an agent was started: its standard input and output, and
what it complains of.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from syrtos.engines.reservation import Node
from syrtos.errors import SyrtosError
from syrtos.launch.spec import Host

# Where the socket is, for commands of the run.
VARIABLE = "SYRTOS_RAY_DOOR"
_LONGEST = 1 << 16


class AgentStarter(Protocol):
    """Something that knows hosts, and starts commands on them."""

    def hosts(self) -> tuple[Host, ...]:
        """Returns the hosts of the moment."""
        ...

    def nodes(self) -> tuple[Node, ...]:
        """Returns the nodes on which places are at the moment."""
        ...

    def start(self, host: str, command: Sequence[str]) -> tuple[int, int]:
        """Starts a command and returns descriptors of its standard input and output, and of errors.

        Raises:
            SyrtosError: it can't be started there.
        """
        ...


class AgentSocket:
    """The side that answers."""

    def __init__(self, path: str, starts: AgentStarter) -> None:
        self._starts = starts
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(256)
        threading.Thread(target=self._accept, name="syrtos-door", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                asking, _ = self._listener.accept()
            except OSError:
                return  # closed
            # Each question in a thread, as agents take a second to start.
            threading.Thread(target=self._answer, args=(asking,), daemon=True).start()

    def _answer(self, asking: socket.socket) -> None:
        # Whoever has asked may be gone.
        with contextlib.suppress(OSError), asking:
            try:
                text, descriptors = self._answer_to(_line(asking))
            except SyrtosError as error:
                text, descriptors = f"!{error}", ()
            except Exception as error:
                # Whoever has asked would not know why there is no agent.
                text, descriptors = f"!{type(error).__name__}: {error}", ()
            try:
                socket.send_fds(asking, [text.encode() + b"\n"], descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _answer_to(self, question: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
        if "host" in question:
            return "", self._starts.start(question["host"], question["command"])
        if "nodes" in question:
            return (
                " ".join(
                    f"{node.name}={node.address}={node.cpus}" for node in self._starts.nodes()
                ),
                (),
            )
        return " ".join(f"{host.name}:{host.slots}" for host in self._starts.hosts()), ()

    def close(self) -> None:
        """Stops listening."""
        with contextlib.suppress(OSError):
            # `close` alone leaves a thread in `accept`.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def ask(path: str, **question: object) -> tuple[str, list[int]]:
    """Asks at the door, and returns the answer with its descriptors.

    Raises:
        SyrtosError: the answer is no.
        OSError: nobody answers there.
    """
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(path)
        asked.sendall(json.dumps(question).encode() + b"\n")
        said, descriptors, _, _ = socket.recv_fds(asked, _LONGEST, 2)
        while not said.endswith(b"\n") and (more := asked.recv(_LONGEST)):
            said += more
    text = said.decode().rstrip("\n")
    if text.startswith("!"):
        raise SyrtosError(text[1:])
    return text, descriptors


def _line(asking: socket.socket) -> dict[str, Any]:
    with asking.makefile("rb") as file:
        return json.loads(file.readline(_LONGEST))
